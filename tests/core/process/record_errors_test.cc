#include "tessera/record_errors.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/error_file.h"
#include "tessera/errors.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::HasSubstr;

/// What record_errors() makes of a body, with an error file at `path`.
struct RecordedEnd {
  int exit_code;
  std::string printed;
};
RecordedEnd outcome_of(const std::string& path, const std::function<int()>& body) {
  ::setenv("TORCHELASTIC_ERROR_FILE", path.c_str(), 1);
  ::testing::internal::CaptureStderr();
  const int exit_code = record_errors(body);
  ::unsetenv("TORCHELASTIC_ERROR_FILE");
  return {exit_code, ::testing::internal::GetCapturedStderr()};
}

template <typename Error>
std::function<int()> throwing(Error error) {
  return [error]() -> int { throw error; };
}

TEST(RecordErrors, TheTextIsInTheErrorFile) {
  const TemporaryDirectory folder;
  const std::string path = folder.path() + "/error.json";
  const auto outcome = outcome_of(path, throwing(std::runtime_error("no \"data\" \xff here")));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.printed, HasSubstr("no \"data\" \xff here\n"));
  EXPECT_THAT(read_error_file(path), HasSubstr("no \"data\" "));
}

TEST(RecordErrors, WhatReturnsIsReturned) {
  const TemporaryDirectory folder;
  const auto outcome = outcome_of(folder.path() + "/error.json", [] { return 7; });
  EXPECT_EQ(outcome.exit_code, 7);
  EXPECT_EQ(outcome.printed, "");
  EXPECT_TRUE(folder.is_empty());
}

TEST(RecordErrors, TheExitCodeSaysWhatKindOfError) {
  const std::string nowhere = "/no/such/folder/error.json";
  EXPECT_EQ(outcome_of(nowhere, throwing(std::invalid_argument("--n: got 0"))).exit_code, 64);
  EXPECT_EQ(outcome_of(nowhere, throwing(5)).exit_code, 1);
  const RankError error({.rank = 2, .exit_code = 137, .signal = 9}, "rank 2 died");
  const auto outcome = outcome_of(nowhere, throwing(error));
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_EQ(outcome.printed, "rank 2 died\n");
}

TEST(RecordErrors, ABacktraceIsNotPrinted) {
  const auto outcome = outcome_of("", []() -> int { TORCH_CHECK(false, "options: got none"); });
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.printed, "options: got none\n");
}

}  // namespace
}  // namespace tessera::internal::testing
