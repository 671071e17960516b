#include "tessera/core/comm/meeting/job_table.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

Message ask(JobTable& table, RequestKind kind, std::vector<std::string> fields) {
  return table.reply({.kind = static_cast<uint8_t>(kind), .fields = std::move(fields)});
}

Message yes(std::vector<std::string> fields = {}) {
  return {.kind = static_cast<uint8_t>(ReplyKind::kYes), .fields = std::move(fields)};
}

const Message kNo{.kind = static_cast<uint8_t>(ReplyKind::kNo), .fields = {}};

bool is_wrong(const Message& message) {
  return message.kind == static_cast<uint8_t>(ReplyKind::kWrong);
}

TEST(JobTable, KeepsTexts) {
  JobTable table;
  EXPECT_EQ(ask(table, RequestKind::kGet, {"a"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kSet, {"a", "1"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kGet, {"a"}), yes({"1"}));
  EXPECT_EQ(ask(table, RequestKind::kCheck, {"a", "b"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kSet, {"b", ""}), yes());
  EXPECT_EQ(ask(table, RequestKind::kCheck, {"a", "b"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kCount, {}), yes({"2"}));
  EXPECT_EQ(ask(table, RequestKind::kDelete, {"a"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kDelete, {"a"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kCheck, {}), yes());
}

TEST(JobTable, ComparesAsC10dsStoresDo) {
  JobTable table;
  EXPECT_EQ(ask(table, RequestKind::kCompareSet, {"k", "expected", "x"}), yes({"expected"}));
  EXPECT_EQ(ask(table, RequestKind::kGet, {"k"}), kNo);
  EXPECT_EQ(ask(table, RequestKind::kCompareSet, {"k", "", "first"}), yes({"first"}));
  EXPECT_EQ(ask(table, RequestKind::kCompareSet, {"k", "", "second"}), yes({"first"}));
  EXPECT_EQ(ask(table, RequestKind::kCompareSet, {"k", "first", "third"}), yes({"third"}));
}

TEST(JobTable, AddsWithoutOverflow) {
  JobTable table;
  EXPECT_EQ(ask(table, RequestKind::kAdd, {"n", "1000000000000"}), yes({"1000000000000"}));
  EXPECT_EQ(ask(table, RequestKind::kAdd, {"n", "-1"}), yes({"999999999999"}));
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kAdd, {"n", "9223372036854775807"})));
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kAdd, {"n", "1x"})));
  ask(table, RequestKind::kSet, {"text", "no number"});
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kAdd, {"text", "1"})));
}

TEST(JobTable, RefusesWhatIsNoRequest) {
  JobTable table;
  for (int kind = 0; kind < 256; ++kind) {
    for (const size_t fields : {0, 1, 2, 3, 4}) {
      const Message reply = table.reply(
          {.kind = static_cast<uint8_t>(kind), .fields = std::vector<std::string>(fields, "1")});
      const bool is_known = kind >= static_cast<int>(RequestKind::kSet) &&
                            kind <= static_cast<int>(RequestKind::kCount);
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
  EXPECT_TRUE(is_wrong(ask(table, RequestKind::kSet, {"b", much})));
  EXPECT_EQ(ask(table, RequestKind::kDelete, {"a"}), yes());
  EXPECT_EQ(ask(table, RequestKind::kSet, {"b", much}), yes());
}

TEST(JobTable, LendsWhatIsLent) {
  JobTable table;
  EXPECT_FALSE(table.lent("page"));
  table.lend("page", 7);
  EXPECT_EQ(table.lent("page"), 7);
  table.set_unless_there("mark", "gone");
  table.set_unless_there("mark", "later");
  EXPECT_EQ(ask(table, RequestKind::kGet, {"mark"}), yes({"gone"}));
}

}  // namespace
}  // namespace tessera::internal
