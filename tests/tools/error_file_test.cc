#include "tessera/tools/run/error_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

class ErrorFileTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() + "/error.json"; }
  std::string message_of(const std::string& content) const {
    std::ofstream(path()) << content;
    return read_error_file(path());
  }

  const testing::TemporaryDirectory folder_;
};

TEST_F(ErrorFileTest, BothFormsOfTorchrunAreRead) {
  EXPECT_EQ(message_of(R"({"message": "bad batch", "timestamp": 17})"), "bad batch");
  EXPECT_EQ(message_of(R"({"message": {"message": "RuntimeError: bad\nbatch", "extraInfo":
                           {"py_callstack": "...", "timestamp": "1700000000"}}})"),
            "RuntimeError: bad\nbatch");
}

TEST_F(ErrorFileTest, WhatIsNoSuchFileSaysNothing) {
  for (const char* content :
       {"", "{", R"({"message": "trunc)", R"("message")", R"({"text": "a"})", R"({"message": 3})",
        R"({"message": {"message": {"message": "deep"}}})", "[[[[[[[["}) {
    EXPECT_EQ(message_of(content), "") << content;
  }
  EXPECT_EQ(read_error_file(folder_.path() + "/missing"), "");
  EXPECT_EQ(read_error_file(folder_.path()), "");
  EXPECT_EQ(read_error_file("/dev/zero"), "");
}

TEST_F(ErrorFileTest, ATerminalMayShowTheMessage) {
  EXPECT_EQ(message_of(R"({"message": "a\u001b[2J\tb\n"})"), "a?[2J\tb\n");
  EXPECT_EQ(message_of("{\"message\": \"" + std::string(50000, 'x') + "\"}").size(), 4000u);
}

TEST_F(ErrorFileTest, WhatIsWrittenCanBeRead) {
  EXPECT_EQ(write_error_file(path(), "rank 1 \"failed\"\nbadly \xff"), "");
  EXPECT_THAT(testing::content_of(path()),
              MatchesRegex("\\{\"message\":\".*\",\"timestamp\":[0-9]+\\}\n"));
  EXPECT_THAT(read_error_file(path()), HasSubstr("rank 1 \"failed\"\nbadly "));
  EXPECT_EQ(write_error_file(path(), "short"), "");
  EXPECT_EQ(read_error_file(path()), "short") << "nothing of the longer one is left";
  const std::string nowhere = folder_.path() + "/missing/file";
  EXPECT_EQ(write_error_file(nowhere, "text"),
            "cannot write TORCHELASTIC_ERROR_FILE '" + nowhere + "': No such file or directory");
}

}  // namespace
}  // namespace tessera::internal
