#include "tessera/core/process/error_text.h"

#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
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

struct Mute : std::exception {
  const char* what() const noexcept override { return nullptr; }
};

TEST(ErrorText, NamesTheTypeWhereTheTextIsNull) {
  EXPECT_THAT(error_text(Mute()), ::testing::HasSubstr("Mute without text"));
}

TEST(ErrorText, SaysSomethingOfAnyExceptionThatIsHandled) {
  try {
    throw std::out_of_range("far");
  } catch (...) {
    EXPECT_EQ(present_error_text(), "far");
  }
  for (const bool is_string : {true, false}) {
    try {
      if (is_string) throw std::string("a word");
      throw "a word";
    } catch (...) {
      EXPECT_EQ(present_error_text(), "a word");
    }
  }
  try {
    throw 3;
  } catch (...) {
    EXPECT_EQ(present_error_text(), "an exception of unknown type");
  }
}

}  // namespace
}  // namespace tessera::internal
