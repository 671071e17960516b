#include "tessera/checkpoint/files/posix_file_system.h"

#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class PosixFileSystemTest : public ::testing::Test {
 protected:
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }
  void put(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
  }
  mode_t mode_of(const std::string& name) const {
    struct stat status {};
    EXPECT_EQ(::stat(path(name).c_str(), &status), 0);
    return status.st_mode & 07777;
  }
  static std::string text_of(const absl::Status& status) { return std::string(status.message()); }

  testing::TemporaryDirectory directory_;
  PosixFileSystem files_;
};

TEST_F(PosixFileSystemTest, WritesAndReadsBack) {
  auto file = files_.create(path("a b ü"));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->write_all("some").ok());
  EXPECT_TRUE((*file)->write_all(" bytes").ok());
  EXPECT_TRUE((*file)->sync().ok());
  EXPECT_TRUE((*file)->close().ok());
  EXPECT_TRUE(files_.sync_directory(directory_.path()).ok());
  EXPECT_EQ(files_.entry(path("a b ü"))->bytes, 10);
  const auto reader = files_.open(path("a b ü"));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string text(5, ' ');
  EXPECT_TRUE((*reader)->read(5, absl::MakeSpan(text)).ok());
  EXPECT_EQ(text, "bytes");
  const absl::Status beyond = (*reader)->read(6, absl::MakeSpan(text));
  EXPECT_TRUE(absl::IsOutOfRange(beyond)) << beyond;
  EXPECT_THAT(text_of(beyond), AllOf(HasSubstr(path("a b ü")), HasSubstr("ends at byte 10")));
}

TEST_F(PosixFileSystemTest, GivesModesForTheOwnerAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 0777}) {
    const mode_t before = ::umask(mask);
    const std::string suffix = std::to_string(mask);
    EXPECT_TRUE(files_.create(path("file" + suffix)).ok());
    EXPECT_TRUE(files_.make_directory(path("directory" + suffix)).ok());
    ::umask(before);
    EXPECT_EQ(mode_of("file" + suffix), 0600U);
    EXPECT_EQ(mode_of("directory" + suffix), 0700U);
  }
}

TEST_F(PosixFileSystemTest, GivesAGroupWhatTheUmaskLeaves) {
  PosixFileSystem files({.group_access = true});
  const mode_t before = ::umask(0027);
  EXPECT_TRUE(files.create(path("file")).ok());
  EXPECT_TRUE(files.make_directory(path("directory")).ok());
  EXPECT_TRUE(files.lock(path("lock"), "a").ok());
  ::umask(before);
  EXPECT_EQ(mode_of("file"), 0640U);
  EXPECT_EQ(mode_of("directory"), 0750U);
  EXPECT_EQ(mode_of("lock"), 0640U);
}

TEST_F(PosixFileSystemTest, LeavesALockTheModeThatItsOwnerHasGivenIt) {
  EXPECT_TRUE(files_.lock(path("lock"), "a job with quite a long name").ok());
  EXPECT_EQ(mode_of("lock"), 0600U);
  ASSERT_EQ(::chmod(path("lock").c_str(), 0660), 0);
  EXPECT_TRUE(files_.lock(path("lock"), "next job").ok());
  EXPECT_EQ(mode_of("lock"), 0660U);
  EXPECT_EQ(testing::content_of(path("lock")), "next job");
}

TEST_F(PosixFileSystemTest, ReplacesNothing) {
  put("a", "first");
  put("b", "second");
  EXPECT_TRUE(absl::IsAlreadyExists(files_.create(path("a")).status()));
  EXPECT_TRUE(absl::IsAlreadyExists(files_.rename(path("a"), path("b"))));
  EXPECT_TRUE(files_.make_directory(path("d")).ok());
  EXPECT_TRUE(files_.make_directory(path("e")).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(files_.make_directory(path("d"))));
  // rename(2) itself would replace an empty directory.
  EXPECT_TRUE(absl::IsAlreadyExists(files_.rename(path("d"), path("e"))));
  EXPECT_TRUE(files_.rename(path("d"), path("f")).ok());
  EXPECT_THAT(*files_.list(directory_.path()), ElementsAre("a", "b", "e", "f"));
}

TEST_F(PosixFileSystemTest, OpensNothingButFiles) {
  put("file", "x");
  ASSERT_EQ(::symlink(path("file").c_str(), path("link").c_str()), 0);
  ASSERT_EQ(::mkfifo(path("fifo").c_str(), 0600), 0);
  for (const char* const name : {"link", "fifo", "."}) {
    const auto file = files_.open(path(name));
    EXPECT_TRUE(absl::IsFailedPrecondition(file.status())) << name << file.status();
    EXPECT_THAT(text_of(file.status()), HasSubstr(path(name)));
  }
  EXPECT_EQ(files_.entry(path("link"))->kind, FileEntry::Kind::kLink);
  EXPECT_EQ(files_.entry(path("fifo"))->kind, FileEntry::Kind::kOther);
  EXPECT_EQ(files_.entry(directory_.path())->kind, FileEntry::Kind::kDirectory);
}

TEST_F(PosixFileSystemTest, SaysOperationPathAndErrno) {
  const std::string missing = path("missing/name");
  const auto expect = [&](const absl::Status& status, const char* operation) {
    EXPECT_TRUE(absl::IsNotFound(status)) << status;
    EXPECT_THAT(text_of(status), AllOf(HasSubstr(operation), HasSubstr(missing),
                                       HasSubstr("No such file or directory (errno 2)")));
  };
  expect(files_.create(missing).status(), "create");
  expect(files_.open(missing).status(), "open");
  expect(files_.make_directory(missing), "make the directory");
  expect(files_.sync_directory(missing), "open");
  expect(files_.rename(missing, path("b")), "rename");
  expect(files_.remove_file(missing), "remove");
  expect(files_.list(missing).status(), "list");
  expect(files_.entry(missing).status(), "stat");
  expect(files_.lock(missing, "x").status(), "open");
}

TEST_F(PosixFileSystemTest, SaysThatTheDiskIsFull) {
  auto file = files_.create(path("a"));
  ASSERT_TRUE(file.ok());
  const testing::FileSizeLimit limit(1000);
  EXPECT_TRUE((*file)->write_all(std::string(700, 'x')).ok());
  const absl::Status status = (*file)->write_all(std::string(700, 'x'));
  EXPECT_THAT(text_of(status), HasSubstr("cannot write '" + path("a") + "': File too large"));
  EXPECT_EQ(files_.entry(path("a"))->bytes, 1000) << "a short write, then the error";
}

TEST_F(PosixFileSystemTest, WritesAllOfItThroughShortWritesAndSignals) {
  struct sigaction action {};
  action.sa_handler = [](int) {};  // without SA_RESTART: write() ends early, or with EINTR
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  std::string bytes(1 << 20, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  absl::Status status;
  std::atomic<bool> is_done = false;
  std::thread writer([&] {
    status = write_all(ends[1], bytes, "pipe");
    is_done = true;
    ::close(ends[1]);
  });
  std::string got;
  char part[1024];
  for (ssize_t count = 1; count > 0;) {
    if (!is_done) ::pthread_kill(writer.native_handle(), SIGUSR1);
    count = ::read(ends[0], part, sizeof(part));
    if (count > 0) got.append(part, static_cast<size_t>(count));
    if (count < 0 && errno == EINTR) count = 1;
  }
  writer.join();
  ::close(ends[0]);
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(got == bytes) << got.size();
}

TEST_F(PosixFileSystemTest, RemovesTreesAndFollowsNoLinks) {
  put("keep", "x");
  ASSERT_TRUE(files_.make_directory(path("d")).ok());
  ASSERT_TRUE(files_.make_directory(path("d/e")).ok());
  put("d/e/f", "x");
  ASSERT_EQ(::symlink(directory_.path().c_str(), path("d/link").c_str()), 0);
  EXPECT_TRUE(remove_tree(files_, path("d")).ok());
  EXPECT_TRUE(remove_tree(files_, path("d")).ok()) << "nothing is no error";
  EXPECT_THAT(*files_.list(directory_.path()), ElementsAre("keep"));
}

TEST_F(PosixFileSystemTest, LocksOnceAndNamesTheHolder) {
  auto lock = files_.lock(path("lock"), "pid 7 on host a");
  ASSERT_TRUE(lock.ok()) << lock.status();
  const auto second = files_.lock(path("lock"), "pid 8 on host b");
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status())) << second.status();
  EXPECT_THAT(text_of(second.status()),
              AllOf(HasSubstr(path("lock")), HasSubstr("held by pid 7 on host a")));
  EXPECT_THAT(testing::names_in(directory_.path()), ElementsAre("lock"));
  lock->reset();
  EXPECT_TRUE(files_.lock(path("lock"), "c").ok());
}

TEST_F(PosixFileSystemTest, ALockEndsWithItsProcess) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const auto lock = files_.lock(path("lock"), "child");
    ::_exit(lock.ok() ? 0 : 1);  // no destructor: as if it was killed
  }
  int status = 1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(files_.lock(path("lock"), "parent").ok());
}

TEST_F(PosixFileSystemTest, AForkedProcessThatLivesOnDoesNotKeepItsParentsLock) {
  int ready[2], over[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(over), 0);
  char byte = 0;
  const pid_t parent = ::fork();
  ASSERT_GE(parent, 0);
  if (parent == 0) {
    const auto lock = files_.lock(path("lock"), "parent");
    if (::fork() == 0) {  // lives on until the test says so
      ::close(over[1]);
      (void)!::write(ready[1], "x", 1);
      (void)!::read(over[0], &byte, 1);
    }
    ::_exit(lock.ok() ? 0 : 1);
  }
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  int status = 1;
  ASSERT_EQ(::waitpid(parent, &status, 0), parent);
  EXPECT_EQ(status, 0);
  const auto lock = files_.lock(path("lock"), "next job");
  EXPECT_TRUE(lock.ok()) << lock.status();
  for (const int fd : {ready[0], ready[1], over[0], over[1]}) ::close(fd);
}

TEST_F(PosixFileSystemTest, ReadersShareALockAndKeepOthersOut) {
  put("manifest", "content");
  auto one = files_.lock_content(path("manifest"), false);
  auto two = files_.lock_content(path("manifest"), false);
  ASSERT_TRUE(one.ok() && two.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(files_.lock_content(path("manifest"), true).status()));
  one->reset();
  EXPECT_TRUE(absl::IsFailedPrecondition(files_.lock_content(path("manifest"), true).status()));
  two->reset();
  const auto alone = files_.lock_content(path("manifest"), true);
  EXPECT_TRUE(alone.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(files_.lock_content(path("manifest"), false).status()));
  EXPECT_EQ(files_.entry(path("manifest"))->bytes, 7);
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(printable("a\n\x1b[2J"), "a\\n\\x1b[2J");
  EXPECT_EQ(printable(std::string(300, 'x')).size(), 203U);
}

TEST(Paths, AreJoinedAndSplit) {
  EXPECT_EQ(join_path("/a", "b"), "/a/b");
  EXPECT_EQ(join_path("/a/", "b"), "/a/b");
  EXPECT_EQ(parent_path("/a/b"), "/a");
  EXPECT_EQ(parent_path("/a/b/"), "/a");
  EXPECT_EQ(parent_path("/a"), "/");
  EXPECT_EQ(parent_path("a"), ".");
}

}  // namespace
}  // namespace tessera::internal
