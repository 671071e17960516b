// File systems that lack calls, as Lustre, CIFS, NFS and FUSE may: saves without these calls.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/files/best_effort.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/tests/checkpoint/small_run.h"
#include "tessera/tests/support/refused_calls.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Truly;

const std::vector<int> kNoLocks{ENOSYS, ENOLCK, EOPNOTSUPP, EINVAL};
const std::vector<int> kUnsupported{EINVAL, ENOSYS, EOPNOTSUPP};

size_t times_in(const std::string& text, const std::string& part) {
  size_t times = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++times;
  return times;
}

class RefusedCallsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  }
  std::string path(const std::string& name) const { return directory_.path() + "/" + name; }

  TemporaryDirectory directory_;
  PosixFileSystem files_;
};

TEST_F(RefusedCallsTest, WithoutLocksAFileIsInTheirPlace) {
  for (const int error : kNoLocks) {
    run_with_refused_calls({{SYS_flock, error}}, [&] {
      auto lock = files_.lock(path("lock"), "pid 7 on host a");
      ASSERT_TRUE(lock.ok()) << lock.status();
      EXPECT_EQ(content_of(path("lock.held")), "pid 7 on host a");
      const absl::Status second = files_.lock(path("lock"), "pid 8 on host b").status();
      EXPECT_TRUE(is_held(second)) << second;
      EXPECT_THAT(text_of(second), AllOf(HasSubstr(path("lock.held")),
                                         HasSubstr("held by pid 7 on "
                                                   "host a"),
                                         HasSubstr("remove the file by hand")));
      EXPECT_EQ(content_of(path("lock.held")), "pid 7 on host a");
      for (const bool alone : {false, true}) {
        const absl::Status content = files_.lock_content(path("lock"), alone).status();
        EXPECT_TRUE(absl::IsUnimplemented(content)) << content;
      }
      lock->reset();
      EXPECT_FALSE(std::filesystem::exists(path("lock.held")));
      EXPECT_TRUE(files_.lock(path("lock"), "pid 9").ok());
    });
  }
}

TEST_F(RefusedCallsTest, AFileInPlaceOfALockOutlivesAKillAndIsNoChilds) {
  run_with_refused_calls({{SYS_flock, ENOSYS}}, [&] {
    const auto exit_code_of = [](const auto& body) {
      const pid_t child = ::fork();
      if (child == 0) ::_exit(body() ? 0 : 1);  // no destructor: as if it was killed
      int status = -1;
      ::waitpid(child, &status, 0);
      return status;
    };
    std::unique_ptr<FileLock> lock;
    ASSERT_EQ(exit_code_of([&] {
                auto taken = files_.lock(path("lock"), "child");
                if (taken.ok()) lock = *std::move(taken);
                return lock != nullptr;
              }),
              0);
    EXPECT_THAT(text_of(files_.lock(path("lock"), "next job").status()),
                HasSubstr("held by child"));
    ASSERT_TRUE(std::filesystem::remove(path("lock.held")));
    auto taken = files_.lock(path("lock"), "next job");
    ASSERT_TRUE(taken.ok()) << taken.status();
    lock = *std::move(taken);
    EXPECT_EQ(exit_code_of([&] {
                lock.reset();
                return true;
              }),
              0);
    EXPECT_TRUE(std::filesystem::exists(path("lock.held")));
  });
}

TEST_F(RefusedCallsTest, AFileInPlaceOfALockKeepsOutThoseWhoHaveLocks) {
  std::unique_ptr<FileLock> lock;
  run_with_refused_calls({{SYS_flock, EOPNOTSUPP}},
                         [&] { lock = *files_.lock(path("lock"), "pid 7 on host a"); });
  const auto refused = files_.lock(path("lock"), "another");
  EXPECT_TRUE(is_held(refused.status()));
  EXPECT_THAT(text_of(refused.status()), AllOf(HasSubstr("pid 7 on host a"), HasSubstr("by hand")));
  lock.reset();
  EXPECT_TRUE(files_.lock(path("lock"), "another").ok());
}

TEST_F(RefusedCallsTest, ARunIsSavedReadAndThinnedOutWithoutLocksModesSyncAndFreeSpace) {
  for (const int error : kNoLocks) {
    const TemporaryDirectory directory;
    const SmallRun run{.directory = directory.path() + "/run"};
    run_with_refused_calls(
        {{SYS_flock, error},
         {SYS_fchmod, EPERM},
         {kChmodCall, EPERM},
         {SYS_fsync, EINVAL},
         {SYS_statfs, ENOSYS},
         {SYS_renameat2, EINVAL}},
        [&] {
          auto owner = RunDirectory::open(files_, run.directory, holder_of_this_process());
          ASSERT_TRUE(owner.ok()) << owner.status();
          for (const int64_t step : {1, 2, 3}) {
            ASSERT_TRUE(run.save(files_, step).ok());
            (*owner)->note_verified(step);
          }
          EXPECT_TRUE(is_held(RunDirectory::open(files_, run.directory, "another").status()));
          const auto reader = StepReader::open(files_, run.path_of(3));
          ASSERT_TRUE(reader.ok()) << reader.status();
          EXPECT_EQ(wrong_values(**reader, run), "");
          EXPECT_THAT((*owner)->retain({.keep_last = 1}).deleted, ElementsAre(1, 2));
          EXPECT_THAT(names_in(run.directory), ElementsAre("lock", "lock.held", "step-3"));
          owner->reset();
          EXPECT_THAT(names_in(run.directory), ElementsAre("lock", "step-3"));
        });
  }
}

TEST_F(RefusedCallsTest, ModesAreNoReasonToFail) {
  for (const int error : {EPERM, EINVAL, ENOSYS, EOPNOTSUPP}) {
    const std::string suffix = std::to_string(error);
    const mode_t before = ::umask(0277);  // makes modes differ from the intended ones
    run_with_refused_calls({{SYS_fchmod, error}, {kChmodCall, error}}, [&] {
      const absl::Status file = files_.create(path("file" + suffix)).status();
      EXPECT_TRUE(file.ok()) << file;
      const absl::Status directory = files_.make_directory(path("directory" + suffix));
      EXPECT_TRUE(directory.ok()) << directory;
      const absl::Status lock = files_.lock(path("lock" + suffix), "a").status();
      EXPECT_TRUE(lock.ok()) << lock;
    });
    ::umask(before);
    struct stat status {};
    ASSERT_EQ(::stat(path("directory" + suffix).c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0500U) << "the calls were refused";
  }
}

TEST_F(RefusedCallsTest, SyncIsNoReasonToFailUnlessTheDiskFails) {
  const auto results_under = [&](int error) {
    std::vector<int> errors;
    run_with_refused_calls({{SYS_fsync, error}}, [&] {
      const auto file = files_.create(path("file" + std::to_string(error)));
      ASSERT_TRUE(file.ok()) << file.status();
      errors = {errno_of((*file)->sync()), errno_of(files_.sync_directory(directory_.path()))};
    });
    return errors;
  };
  for (const int error : kUnsupported) EXPECT_THAT(results_under(error), ElementsAre(0, 0));
  for (const int error : {EIO, ENOSPC, EDQUOT}) {
    EXPECT_THAT(results_under(error), ElementsAre(error, error));
  }
}

TEST_F(RefusedCallsTest, RenamesReplaceNothingWhereTheKernelDoesNotSeeToIt) {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP, EPERM}) {
    const std::string from = path("from" + std::to_string(error)), to = from + ".new";
    std::ofstream(path("file")) << "content";
    run_with_refused_calls({{SYS_renameat2, error}}, [&] {
      ASSERT_TRUE(files_.make_directory(from).ok());
      ASSERT_TRUE(files_.make_directory(to).ok());
      EXPECT_TRUE(absl::IsAlreadyExists(files_.rename(from, to)));
      ASSERT_TRUE(files_.remove_directory(to).ok());
      const absl::Status status = files_.rename(from, to);
      EXPECT_TRUE(status.ok()) << status;
    });
    EXPECT_FALSE(std::filesystem::exists(from));
    EXPECT_TRUE(std::filesystem::is_directory(to));
  }
}

TEST_F(RefusedCallsTest, ALockThatMayNotBeWrittenNamesTheRemedy) {
  absl::Status denied, failed;
  run_with_refused_calls({{SYS_openat, EACCES}},
                         [&] { denied = files_.lock(path("lock"), "a").status(); });
  run_with_refused_calls({{SYS_openat, EIO}},
                         [&] { failed = files_.lock(path("lock"), "a").status(); });
  EXPECT_TRUE(absl::IsPermissionDenied(denied)) << denied;
  EXPECT_EQ(errno_of(denied), EACCES);
  EXPECT_THAT(text_of(denied), AllOf(HasSubstr("cannot open '" + path("lock") + "'"),
                                     HasSubstr("chmod -R g+rwX"), HasSubstr("group_access")));
  EXPECT_THAT(text_of(failed), Not(HasSubstr("group_access")));
}

/// Makes each refused call twice.
[[noreturn]] void save_twice() {
  {
    const TemporaryDirectory directory;
    PosixFileSystem files;
    run_with_refused_calls({{SYS_flock, ENOLCK}, {SYS_fchmod, EPERM}, {SYS_fsync, EINVAL}}, [&] {
      for (const char* const name : {"/a", "/b"}) {
        const std::string path = directory.path() + name;
        if (!files.lock(path + ".lock", "a").ok()) ::_exit(1);
        const auto file = files.create(path);
        if (!(*file)->sync().ok() || !files.sync_directory(directory.path()).ok()) ::_exit(2);
        // From now on this file system gives files the intended mode.
        if (::chmod(path.c_str(), 0644) != 0) ::_exit(3);
        const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        set_mode(fd.get(), path, 0600);
      }
    });
  }
  ::_exit(0);
}

TEST(RefusedCalls, AreSaidOnceInAProcess) {
  if (!can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto has_each_once = [](const std::string& text) {
    return times_in(text, "a.lock': No locks available") == 1 &&
           times_in(text, "b.lock': No locks available") == 0 &&
           times_in(text, "has no fsync of files") == 1 &&
           times_in(text, "has no fsync of directories") == 1 &&
           times_in(text, "other users may read it") == 1;
  };
  EXPECT_EXIT(save_twice(), ::testing::ExitedWithCode(0), Truly(has_each_once));
}

}  // namespace
}  // namespace tessera::internal::testing
