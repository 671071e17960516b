#include "tessera/core/comm/meeting/job_table.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

Message ask(JobTable& table, RequestKind kind, std::vector<std::string> fields) {
  return table.reply(Message::of(kind, std::move(fields)));
}

Message yes(std::vector<std::string> fields = {}) {
  return Message::of(ReplyKind::kYes, std::move(fields));
}

const Message kNo = Message::of(ReplyKind::kNo);

bool is_wrong(const Message& message) {
  return message.kind == static_cast<uint8_t>(ReplyKind::kWrong);
}

TEST(JobTable, KeepsTexts) {
  JobTable table;
  EXPECT_EQ(ask(table, RequestKind::kGet, {"a"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kSet, {"a", "1"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kGet, {"a"}), yes({"1"}));
  EXPECT_EQ(ask(table, RequestKind::kHas, {"a", "b"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kSet, {"b", ""}), yes());
  EXPECT_EQ(ask(table, RequestKind::kHas, {"a", "b"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kErase, {"a"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kErase, {"a"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kGet, {"a"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kHas, {}), yes());
  EXPECT_EQ(ask(table, RequestKind::kSetFirst, {"k", "first"}), yes({"first"}));
  EXPECT_EQ(ask(table, RequestKind::kSetFirst, {"k", "second"}), yes({"first"}));
}

TEST(JobTable, RefusesWhatIsNoRequest) {
  JobTable table;
  for (int kind = 0; kind < 256; ++kind) {
    for (const size_t fields : {0, 1, 2, 3, 4}) {
      const Message reply = table.reply(
          {.kind = static_cast<uint8_t>(kind), .fields = std::vector<std::string>(fields, "1")});
      const bool is_known = kind >= static_cast<int>(RequestKind::kSet) &&
                            kind <= static_cast<int>(RequestKind::kErase);
      EXPECT_TRUE(is_known || is_wrong(reply)) << kind;
    }
  }
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kSet, {"key"})));
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kGet, {"key", "more"})));
}

TEST(JobTable, IsBounded) {
  JobTable table(1000);
  const std::string much(500, 'x');
  EXPECT_EQ(ask(table, RequestKind::kSet, {"a", much}), yes());
  EXPECT_EQ(ask(table, RequestKind::kSet, {"a", much}), yes());  // replaces the first
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kSet, {"b", much})));
  EXPECT_EQ(ask(table, RequestKind::kErase, {"a"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kSet, {"b", much}), yes());
}

}  // namespace
}  // namespace tessera::internal
