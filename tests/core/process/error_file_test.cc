#include "tessera/core/process/error_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

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

TEST_F(ErrorFileTest, AMessageIsShownAsItIsReadBack) {
  EXPECT_EQ(shown_message("no data\n"), "no data\n");
  EXPECT_EQ(shown_message("no \x1b[31mdata \xff"), "no ?[31mdata \ufffd");
  for (const std::string& message :
       {std::string("no \x1b[31mdata"), std::string("\xff\xc3(\xe2\x82"), std::string("a\0b", 3),
        std::string(5000, 'x')}) {
    EXPECT_EQ(write_error_file(path(), message), "");
    EXPECT_EQ(shown_message(message), read_error_file(path()));
  }
}

TEST_F(ErrorFileTest, WhatIsWrittenTorchrunReads) {
  EXPECT_EQ(write_error_file(path(), "rank 1 \"failed\"\nbadly \xff"), "");
  // torch.distributed.elastic shows json["message"]["message"] where there is no
  // json["message"]["extraInfo"]["py_callstack"], even an empty one, and takes the integer of
  // json["message"]["extraInfo"]["timestamp"].
  const auto json = nlohmann::json::parse(testing::content_of(path()));
  const auto& message = json.at("message");
  EXPECT_THAT(message.at("message").get<std::string>(), HasSubstr("rank 1 \"failed\"\nbadly "));
  EXPECT_FALSE(message.at("extraInfo").contains("py_callstack"));
  EXPECT_GT(std::stoll(message.at("extraInfo").at("timestamp").get<std::string>()), 0);
  EXPECT_THAT(read_error_file(path()), HasSubstr("rank 1 \"failed\"\nbadly "));
  EXPECT_THAT(testing::names_in(folder_.path()), ElementsAre("error.json")) << "and no part of it";
}

TEST_F(ErrorFileTest, AFileThatIsThereIsWrittenInPlace) {
  std::ofstream(path()) << std::string(5000, 'x');
  struct stat before, after;
  ASSERT_EQ(stat(path().c_str(), &before), 0);
  const std::string link = folder_.path() + "/link";
  std::filesystem::create_symlink(path(), link);
  for (const std::string& name : {path(), link}) {
    EXPECT_EQ(write_error_file(name, "short"), "");
    EXPECT_EQ(read_error_file(path()), "short") << "nothing of the longer one is left";
  }
  ASSERT_EQ(stat(path().c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(before.st_mode, after.st_mode);
  EXPECT_TRUE(std::filesystem::is_symlink(link));
}

TEST_F(ErrorFileTest, AFileThatIsNoOrdinaryOneStays) {
  ASSERT_EQ(mkfifo(path().c_str(), 0600), 0);
  const FileDescriptor reader(open(path().c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(write_error_file(path(), "text"), "");
  std::string bytes(4096, '\0');
  const ssize_t count = read(reader.get(), bytes.data(), bytes.size());
  ASSERT_GT(count, 0);
  EXPECT_THAT(bytes.substr(0, static_cast<size_t>(count)), HasSubstr("\"text\""));
  EXPECT_TRUE(std::filesystem::is_fifo(path()));
}

TEST_F(ErrorFileTest, AProblemIsNamed) {
  const std::string nowhere = folder_.path() + "/missing/file";
  EXPECT_EQ(write_error_file(nowhere, "text"),
            "cannot write TORCHELASTIC_ERROR_FILE '" + nowhere + "': No such file or directory");
}

}  // namespace
}  // namespace tessera::internal
