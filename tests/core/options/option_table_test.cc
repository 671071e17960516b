#include "tessera/core/options/option_table.h"

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/option_list.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::set<std::string> names_of_options() {
  std::set<std::string> names;
  for (const OptionField& field : option_fields()) names.insert(field.name);
  return names;
}

TEST(OptionTable, EachRowHasItsTextsAndARemedyWhereADeviceRefusesIt) {
  for (const OptionField& field : option_fields()) {
    SCOPED_TRACE(field.name);
    EXPECT_GT(std::string_view(field.doc).size(), 10U);
    EXPECT_GT(std::string_view(field.allowed).size(), 3U);
    EXPECT_FALSE(asks(field, Options{})) << "the default asks for nothing";
    const bool is_for_all = field.devices == OptionField::Devices::kAll;
    EXPECT_EQ(std::string_view(field.elsewhere).empty(), is_for_all);
    if (!is_for_all) {
      EXPECT_THAT(field.elsewhere, HasSubstr("leave it out"));
    }
  }
}

TEST(OptionTable, ANumberIsRefusedOutsideOfTheRangeOfItsRow) {
  const auto problem = [](const char* name, const char* text) {
    Options options;
    EXPECT_TRUE(set_option(options, name, text).ok()) << name;
    std::string found;
    for (const OptionField& field : option_fields()) {
      EXPECT_FALSE(field.range.has_value() && field.number == nullptr) << field.name;
      found += out_of_range(field, options);
    }
    return found;
  };
  EXPECT_EQ(problem("units_in_reduction", "1025"),
            "got 1025; allowed 1 to 1024; the default suits most models");
  EXPECT_EQ(problem("units_in_reduction", "1024"), "");
  EXPECT_EQ(problem("units_in_reduction", "1"), "");
  EXPECT_EQ(problem("units_in_reduction", "unset"), "");
  EXPECT_EQ(problem("grad_norm_type", "0"),
            "got 0; allowed (0, infinity]; leave it out for the 2-norm");
  EXPECT_THAT(problem("max_grad_value", "nan"), HasSubstr("got nan; allowed (0, infinity]"));
  EXPECT_EQ(problem("max_grad_value", "inf"), "");
}

TEST(OptionTable, PairsAreOfFieldsAndNoneIsThereTwice) {
  const std::set<std::string> names = names_of_options();
  std::set<std::string> seen;
  for (const OptionPair& pair : option_pairs()) {
    EXPECT_TRUE(names.contains(pair.option)) << pair.option;
    const std::string other = pair.other;
    EXPECT_TRUE(names.contains(other.substr(0, other.find(" = ")))) << other;
    EXPECT_TRUE(seen.insert(absl::StrCat(pair.option, " ", pair.other)).second) << pair.option;
    EXPECT_FALSE(seen.contains(absl::StrCat(pair.other, " ", pair.option))) << pair.option;
  }
}

TEST(OptionTable, CallsThatAnOptionForbidsNameIt) {
  ResolvedOptions options;
  for (const char* call : {"no_sync", "backward with a weight", "join", "register_comm_hook"}) {
    EXPECT_EQ(option_against(call, options), "");
  }
  options.reproducible = Reproducible::kAnyWorldSize;
  for (const char* call : {"no_sync", "backward with a weight", "join", "register_comm_hook"}) {
    EXPECT_THAT(option_against(call, options),
                HasSubstr(absl::StrCat(call, ": got Options::reproducible, under which ")));
  }
  EXPECT_EQ(option_against("step", options), "") << "the control";
  options = {};
  options.asynchronous_step = true;
  EXPECT_THAT(option_against("join", options),
              AllOf(HasSubstr("got Options::asynchronous_step"), HasSubstr("; set it to false")));
  EXPECT_EQ(option_against("no_sync", options), "");
}

// --- The public list ---

TEST(OptionList, SetsWhatATextCanSay) {
  Options options;
  for (const auto& [name, text] :
       std::vector<std::pair<const char*, const char*>>{{"strategy", "fsdp"},
                                                        {"max_grad_norm", "0.5"},
                                                        {"gradient_divide_factor", "3"},
                                                        {"reproducible", "any world size"},
                                                        {"precision", "BFloat16"},
                                                        {"loss_scale", "1024"},
                                                        {"on_non_finite", "skip"},
                                                        {"average", "0.999"},
                                                        {"buffers", "mean"},
                                                        {"share_parameters", "false"},
                                                        {"bucket_bytes", "1024 2048"},
                                                        {"units_in_reduction", "3"},
                                                        {"prefetch", "true"},
                                                        {"offload", "optimizer"},
                                                        {"degrees", "1,2,4"}}) {
    EXPECT_TRUE(set_option(options, name, text).ok()) << name;
  }
  EXPECT_EQ(options.strategy, Strategy::kZero3);
  EXPECT_EQ(options.max_grad_norm, 0.5);
  EXPECT_EQ(options.gradient_divide_factor, 3.0);
  EXPECT_EQ(options.reproducible, Reproducible::kAnyWorldSize);
  EXPECT_EQ(options.precision.parameters, at::kBFloat16);
  EXPECT_EQ(options.loss_scale->initial, 1024.0);
  EXPECT_EQ(options.on_non_finite, NonFinite::kSkip);
  EXPECT_EQ(options.average->decay, 0.999);
  EXPECT_EQ(options.buffers, BufferSync::kMean);
  EXPECT_FALSE(options.share_parameters);
  EXPECT_EQ(options.bucket_bytes, (std::vector<int64_t>{1024, 2048}));
  EXPECT_EQ(options.units_in_reduction, 3);
  EXPECT_EQ(options.prefetch, true);
  EXPECT_EQ(options.offload, Offload::kOptimizer);
  EXPECT_EQ(options.degrees, (Degrees{1, 2, 4}));
}

TEST(OptionList, SaysWhatIsAllowedAndLeavesTheRestAsItWas) {
  const auto problem = [](const char* name, const char* text) {
    Options options;
    const std::vector<std::string> before = lines(options);
    const std::string message(set_option(options, name, text).message());
    EXPECT_EQ(lines(options), before) << name;
    return message;
  };
  EXPECT_EQ(problem("offload", "everything"),
            "[options] offload: got 'everything', expected none, optimizer, parameters");
  EXPECT_EQ(problem("max_grad_norm", "abc"),
            "[options] max_grad_norm: got 'abc', expected a number");
  EXPECT_EQ(problem("trace", "2"), "[options] trace: got '2', expected true or false");
  EXPECT_EQ(problem("prefetch", ""), "[options] prefetch: got '', expected true or false");
  EXPECT_THAT(problem("bucket_bytes", "1024 many"), HasSubstr("expected whole numbers"));
  EXPECT_THAT(problem("average", "often"), HasSubstr("expected a decay, or mean"));
  EXPECT_THAT(problem("strategy", "zero4"), HasSubstr("expected one of ddp, zero1"));
  EXPECT_THAT(problem("wrap", "blocks"), HasSubstr("only code can set it"));
  EXPECT_EQ(problem("speed", "high"),
            "[options] got the name 'speed', expected a field of Options; option_list() has all");
  EXPECT_EQ(problem("max_grad_norm", "1e400"),
            "[options] max_grad_norm: got '1e400', expected a number");
}

TEST(OptionList, TakesBackWhatIsUnset) {
  Options options;
  for (const OptionDescription& one : option_list()) {
    if (!one.has_text || one.unset != "unset") continue;
    EXPECT_TRUE(set_option(options, one.name, "unset").ok()) << one.name;
  }
  ASSERT_TRUE(set_option(options, "degrees", "1,2,4").ok());
  ASSERT_TRUE(set_option(options, "degrees", "unset").ok());
  EXPECT_FALSE(options.degrees.has_value());
  ASSERT_TRUE(set_option(options, "max_grad_norm", "inf").ok());
  EXPECT_TRUE(std::isinf(options.max_grad_norm));
}

TEST(OptionList, HasEachFieldOnceInTheOrderOfTheTable) {
  std::vector<std::string> names;
  for (const OptionDescription& one : option_list()) names.push_back(one.name);
  std::vector<std::string> fields;
  for (const OptionField& field : option_fields()) fields.emplace_back(field.name);
  EXPECT_EQ(names, fields);
  EXPECT_EQ(option_doc("strategy"), option_list().front().doc);
}

// docs/options.md contains the table and the pairs, word for word.
TEST(OptionList, IsThePage) {
  std::ifstream file(TESSERA_OPTIONS_PAGE);
  std::stringstream page;
  page << file.rdbuf();
  ASSERT_THAT(page.str(), ::testing::Not(IsEmpty()));
  for (const OptionDescription& one : option_list()) {
    EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("\n| `", one.name, "` | ", one.doc, " | ",
                                                   one.allowed, " | ", one.unset, " | ",
                                                   one.strategies, " | ", one.devices, " |\n")));
  }
  for (const OptionPair& pair : option_pairs()) {
    EXPECT_THAT(page.str(), HasSubstr(absl::StrCat("\n| `", pair.option, "` | `", pair.other,
                                                   "` | ", pair.reason, " |\n")));
  }
}

}  // namespace
}  // namespace tessera::internal
