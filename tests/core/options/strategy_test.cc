#include "tessera/strategy.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;

TEST(Strategy, EveryNameAndAliasParsesToItsRow) {
  ASSERT_EQ(strategy_names().size(), 5u);
  std::set<std::string_view> seen;
  for (const StrategyName& row : strategy_names()) {
    EXPECT_EQ(to_string(row.strategy), row.name);
    EXPECT_EQ(parse_strategy(row.name).value(), row.strategy);
    EXPECT_TRUE(seen.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.summary.empty());
    if (row.alias.empty()) continue;
    EXPECT_EQ(parse_strategy(row.alias).value(), row.strategy);
    EXPECT_TRUE(seen.insert(row.alias).second) << row.alias;
  }
  EXPECT_EQ(parse_strategy("fsdp").value(), Strategy::kZero3);
  EXPECT_EQ(parse_strategy("ddp").value(), Strategy::kDdp);
}

TEST(Strategy, AnythingElseIsAnErrorThatListsTheNames) {
  for (const char* text : {"", "DDP", "zero", "zero4", " ddp", "ddp ", "zero1,zero2"}) {
    const absl::StatusOr<Strategy> parsed = parse_strategy(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(parsed.status().message()),
                HasSubstr("[strategy] name: got \"" + std::string(text) +
                          "\", expected one of ddp, zero1, zero2, zero3 (or fsdp)"));
  }
}

TEST(Strategy, FlagsReadAndPrintTheSameNames) {
  for (const StrategyName& row : strategy_names()) {
    Strategy strategy{};
    std::string error;
    EXPECT_TRUE(
        AbslParseFlag(absl::string_view(row.name.data(), row.name.size()), &strategy, &error));
    EXPECT_EQ(strategy, row.strategy);
    EXPECT_TRUE(error.empty());
    EXPECT_EQ(AbslUnparseFlag(row.strategy), row.name);
  }
  Strategy strategy = Strategy::kZero2;
  std::string error;
  EXPECT_FALSE(AbslParseFlag("zerro1", &strategy, &error));
  EXPECT_EQ(strategy, Strategy::kZero2) << "a flag that does not parse must leave the value alone";
  EXPECT_THAT(error, HasSubstr("got \"zerro1\""));
}

TEST(Degrees, FlagsReadAndPrintThreeNumbers) {
  EXPECT_EQ(parse_degrees("2,4,8").value(), (Degrees{2, 4, 8}));
  EXPECT_EQ(AbslUnparseFlag(Degrees{1, 2, 4}), "1,2,4");
  Degrees degrees{2, 2, 2};
  std::string error;
  for (const char* text : {"", "2", "2,4", "2,4,8,16", "a,b,c", "2;4;8", "2,,4"}) {
    EXPECT_FALSE(AbslParseFlag(text, &degrees, &error)) << text;
    EXPECT_EQ(degrees, (Degrees{2, 2, 2})) << "a flag that does not parse leaves the value alone";
    EXPECT_THAT(error, HasSubstr("got \"" + std::string(text) + "\", expected three numbers"));
  }
}

}  // namespace
}  // namespace tessera::internal
