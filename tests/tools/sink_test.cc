#include "tessera/tools/run/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tessera/core/launch/exit_status.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {
namespace {

class SinkTest : public ::testing::Test {
 protected:
  void SetUp() override {
    signal(SIGPIPE, SIG_IGN);
    int ends[2];
    ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = FileDescriptor(ends[0]);
    writer_ = FileDescriptor(ends[1]);
  }

  FileDescriptor reader_;
  FileDescriptor writer_;
};

TEST_F(SinkTest, AFullPipeTakesWhatItCanAndNothingIsLost) {
  Sink sink(writer_.get());
  std::string expected;
  for (int i = 0; i < 30000; ++i) expected += "line " + std::to_string(i) + "\n";
  sink.append(expected);
  EXPECT_TRUE(sink.full());
  std::string got;
  while (!sink.empty()) {
    ASSERT_EQ(sink.write_some(), 0);  // returns although nobody reads
    char bytes[4096];
    const ssize_t count = read(reader_.get(), bytes, sizeof(bytes));
    ASSERT_GT(count, 0);
    got.append(bytes, static_cast<size_t>(count));
  }
  writer_.close();
  sink = Sink(-1);
  char bytes[65536];
  for (ssize_t count; (count = read(reader_.get(), bytes, sizeof(bytes))) > 0;) {
    got.append(bytes, static_cast<size_t>(count));
  }
  EXPECT_EQ(got, expected);
}

TEST_F(SinkTest, ThePipeOfOthersStaysBlocking) {
  const Sink sink(writer_.get());
  EXPECT_NE(sink.poll_fd(), writer_.get());
  EXPECT_EQ(fcntl(writer_.get(), F_GETFL) & O_NONBLOCK, 0);
  EXPECT_NE(fcntl(sink.poll_fd(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(SinkTest, AReaderThatIsGoneIsReportedOnce) {
  Sink sink(writer_.get());
  reader_.close();
  sink.append("a\n");
  EXPECT_EQ(sink.write_some(), EPIPE);
  EXPECT_TRUE(sink.empty());
  sink.append("b\n");
  EXPECT_EQ(sink.write_some(), 0);
  EXPECT_TRUE(sink.empty());
}

TEST_F(SinkTest, AnUnfinishedLineGetsItsNewlineBeforeAnothersText) {
  Sink sink(writer_.get());
  const int one = 1, two = 2;
  sink.append("name? ", &one);
  EXPECT_TRUE(sink.has_open_line_of(&one));
  sink.append("Ada", &one);
  sink.append("said two\n", &two);
  EXPECT_FALSE(sink.has_open_line_of(&one) || sink.has_open_line_of(&two));
  sink.append("10%\r", &one);
  sink.append("said the launcher\n");
  sink.append("20%\r", &one);
  EXPECT_EQ(sink.buffer(), "name? Ada\nsaid two\n10%\r\nsaid the launcher\n20%\r");
  // Also behind what has been written already.
  EXPECT_EQ(sink.write_some(), 0);
  sink.append("last\n", &two);
  EXPECT_EQ(sink.buffer(), "\nlast\n");
}

TEST_F(SinkTest, OnlyDescriptorsOfOnePipeAreTheSameFile) {
  const FileDescriptor again(dup(writer_.get()));
  EXPECT_TRUE(are_same_file(writer_.get(), again.get()));
  int other[2];
  ASSERT_EQ(pipe2(other, O_CLOEXEC), 0);
  const FileDescriptor reader(other[0]), writer(other[1]);
  EXPECT_FALSE(are_same_file(writer_.get(), writer.get()));
  EXPECT_FALSE(are_same_file(-1, -1));
}

TEST(EndingTest, CodesAndSignals) {
  EXPECT_TRUE(ExitStatus(W_EXITCODE(0, 0)).success());
  EXPECT_FALSE(ExitStatus(W_EXITCODE(3, 0)).success());
  EXPECT_EQ(ExitStatus(W_EXITCODE(3, 0)).exit_code(), 3);
  EXPECT_EQ(ExitStatus(W_EXITCODE(3, 0)).describe(), "exited with code 3");
  EXPECT_FALSE(ExitStatus(W_EXITCODE(0, SIGKILL)).success());
  EXPECT_EQ(ExitStatus(W_EXITCODE(0, SIGKILL)).exit_code(), 137);
  EXPECT_EQ(ExitStatus(W_EXITCODE(0, SIGKILL)).describe(), "died of signal 9 (SIGKILL)");
  EXPECT_EQ(ExitStatus(W_EXITCODE(0, SIGSEGV) | WCOREFLAG).describe(),
            "died of signal 11 (SIGSEGV), core dumped");
}

}  // namespace
}  // namespace tessera::internal
