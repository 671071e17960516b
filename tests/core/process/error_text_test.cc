#include "tessera/core/process/error_text.h"

#include <stdexcept>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(ErrorText, LeavesTheBacktraceOut) {
  try {
    TORCH_CHECK(false, "no place");
  } catch (const std::exception& error) {
    EXPECT_EQ(error_text(error), "no place");
    EXPECT_NE(error.what(), error_text(error)) << "a backtrace is what is left out";
  }
}

TEST(ErrorText, NamesTheTypeWhereThereIsNoText) {
  EXPECT_EQ(error_text(std::runtime_error("full")), "full");
  EXPECT_EQ(error_text(std::runtime_error("")), "a std::runtime_error without text");
}

TEST(ErrorText, SaysSomethingOfAnyExceptionThatIsHandled) {
  try {
    throw std::out_of_range("far");
  } catch (...) {
    EXPECT_EQ(present_error_text(), "far");
  }
  try {
    throw 3;
  } catch (...) {
    EXPECT_EQ(present_error_text(), "an exception of unknown type");
  }
}

}  // namespace
}  // namespace tessera::internal
