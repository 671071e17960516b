#include "tessera/examples/program/time_out_flag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/time_out.h"

namespace program {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(TimeOutFlag, TakesSecondsAndNone) {
  const std::pair<const char*, milliseconds> good[] = {
      {"1", seconds(1)}, {"600", seconds(600)}, {"none", milliseconds::max()}};
  for (const auto& [text, expected] : good) {
    TimeOutFlag flag;
    std::string error;
    EXPECT_TRUE(AbslParseFlag(text, &flag, &error)) << error;
    EXPECT_EQ(flag.timeout, expected);
    EXPECT_EQ(AbslUnparseFlag(flag), text);
  }
}

TEST(TimeOutFlag, TakesMoreThanCanBeCountedAsNoLimit) {
  TimeOutFlag flag;
  std::string error;
  ASSERT_TRUE(AbslParseFlag("9223372036854775807", &flag, &error)) << error;
  EXPECT_EQ(tessera::bounded(flag.timeout), tessera::kMaxTimeOut);
}

TEST(TimeOutFlag, RefusesTheRestAndStaysAsItWas) {
  for (const char* text : {"", "0", "00", "-1", "+1", " 1", "1 ", "1.5", "1s", "None", "inf",
                           "99999999999999999999"}) {
    TimeOutFlag flag;
    std::string error;
    EXPECT_FALSE(AbslParseFlag(text, &flag, &error)) << text;
    EXPECT_EQ(flag.timeout, tessera::ProcessGroupOptions().timeout);
    EXPECT_THAT(error, HasSubstr(std::string("got '") + text + "', expected a whole number"));
  }
}

}  // namespace
}  // namespace program
