#include "tessera/checkpoint/directory/run_directory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/tests/checkpoint/simulated_file_system.h"
#include "tessera/tests/checkpoint/small_run.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::SimulatedFileSystem;
using testing::SmallRun;
using testing::text_of;

constexpr const char* kNonce = "00112233445566778899aabbccddeeff";

std::unique_ptr<SimulatedFileSystem> with_steps(const std::vector<int64_t>& steps) {
  auto files = std::make_unique<SimulatedFileSystem>();
  EXPECT_TRUE(files->make_directory("/run").ok());
  for (const int64_t step : steps) EXPECT_TRUE(SmallRun().save(*files, step).ok());
  return files;
}

TEST(StepList, Case65_OrdersByNumber) {
  const auto files = with_steps({100, 9, 20, 0});
  files->put_file("/run/step-7", "");
  files->put_file("/run/step-08", "");
  ASSERT_TRUE(files->make_directory("/run/" + marked_step_name(500, kTemporary, kNonce)).ok());
  EXPECT_THAT(*list_steps(*files, "/run"), ElementsAre(0, 7, 9, 20, 100));
  EXPECT_TRUE(absl::IsNotFound(list_steps(*files, "/other").status()));
}

/// Returns the error of reading step 20 if operation `point` fails with `error`; OK if there is no
/// such operation.
absl::Status read_failing(size_t point, int error, std::string& operation) {
  const auto files = with_steps({10, 20});
  const size_t before = files->operations().size();
  files->fail_at(point, error);
  const auto reader = StepReader::open(*files, "/run/step-20");
  absl::Status status = reader.ok() ? (*reader)->verify_all() : reader.status();
  operation = files->has_failed() ? files->operations()[before + point] : "";
  return status;
}

TEST(StepList, Case58_DoesNotFallBackFromWhatCouldNotBeRead) {
  for (const int error : {EACCES, EMFILE, EIO, ESTALE, ETIMEDOUT, EBUSY, EINTR, ENODEV}) {
    size_t failures = 0;
    std::string operation = "begin";
    for (size_t point = 0; !operation.empty(); ++point) {
      const absl::Status status = read_failing(point, error, operation);
      // If locks are missing, files are read without them.
      if (operation.empty() || operation.starts_with("lock")) {
        EXPECT_TRUE(status.ok()) << status;
      } else {
        EXPECT_FALSE(is_damage(status)) << operation << ": " << status;
        EXPECT_THAT(text_of(status), HasSubstr("/run"));
        ++failures;
      }
    }
    EXPECT_GT(failures, 9U);
  }
}

TEST(Retention, KeepsTheLastAndEveryNth) {
  const std::vector<int64_t> steps{0, 5, 10, 12, 15, 20, 21};
  EXPECT_THAT(steps_to_delete(steps, {.keep_last = 2}), ElementsAre(0, 5, 10, 12, 15));
  EXPECT_THAT(steps_to_delete(steps, {.keep_last = 1, .keep_every = 10}), ElementsAre(5, 12, 15));
  EXPECT_THAT(steps_to_delete(steps, {.keep_last = 0}), ElementsAre(0, 5, 10, 12, 15, 20));
  EXPECT_THAT(steps_to_delete(steps, {.keep_last = 99}), IsEmpty());
  EXPECT_THAT(steps_to_delete({}, {}), IsEmpty());
}

TEST(RunDirectory, DeletesOldStepsAndKeepsAVerifiedOne) {
  const auto files = with_steps({10, 20, 30, 40});
  auto run = RunDirectory::open(*files, "/run", "job");
  ASSERT_TRUE(run.ok()) << run.status();
  const auto unknown = (*run)->retain({.keep_last = 1});
  EXPECT_TRUE(absl::IsDataLoss(unknown.status)) << "nobody said that step 40 is whole";
  EXPECT_THAT(text_of(unknown.status), HasSubstr("no step is deleted"));
  (*run)->note_verified(20);
  EXPECT_FALSE((*run)->retain({.keep_last = 1}).status.ok()) << "20 is not among those that remain";
  (*run)->note_verified(40);
  const std::string manifest = files->content("/run/step-40/manifest.json");
  files->erase("/run/step-40/manifest.json");
  const auto damaged = (*run)->retain({.keep_last = 1});
  EXPECT_THAT(text_of(damaged.status), HasSubstr("/run/step-40/manifest.json"));
  EXPECT_THAT(*list_steps(*files, "/run"), ElementsAre(10, 20, 30, 40));

  files->put_file("/run/step-40/manifest.json", manifest);
  EXPECT_THAT((*run)->retain({.keep_last = 2, .keep_every = 20}).deleted, ElementsAre(10));
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, ElementsAre(20, 30));
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, IsEmpty());
  EXPECT_THAT(*files->list("/run"), ElementsAre("lock", "step-40"));
}

TEST(RunDirectory, Case59_LeavesWhatIsReadOrWritten) {
  const auto files = with_steps({10, 20, 30});
  auto run = RunDirectory::open(*files, "/run", "job");
  ASSERT_TRUE(run.ok());
  (*run)->note_verified(30);
  const std::string writing = "/run/" + marked_step_name(5, kTemporary, kNonce);
  ASSERT_TRUE(files->make_directory(writing).ok());
  auto reader = StepReader::open(*files, "/run/step-10");
  ASSERT_TRUE(reader.ok());
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, ElementsAre(20));
  EXPECT_EQ(testing::wrong_values(**reader, SmallRun()), "");
  EXPECT_TRUE(*exists(*files, writing));
  reader->reset();
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, ElementsAre(10));
}

TEST(RunDirectory, TriesEachStepAndOpensBesideWhatCannotBeRemoved) {
  const auto start = with_steps({10, 20, 30});
  // Every operation of a deletion fails once, as for a file that is still in use.
  size_t points = 0;
  for (bool has_failed = true; has_failed; ++points) {
    const auto files = start->copy();
    auto run = RunDirectory::open(*files, "/run", "job");
    ASSERT_TRUE(run.ok());
    (*run)->note_verified(30);
    files->fail_at(points, EBUSY);
    const auto retained = (*run)->retain({.keep_last = 1});
    has_failed = files->has_failed();
    run->reset();
    if (!has_failed) files->fail_at(1000, EBUSY);
    EXPECT_TRUE(RunDirectory::open(*files, "/run", "next job").ok()) << points;
    const auto left = *list_steps(*files, "/run");
    EXPECT_THAT(left, Contains(30));
    if (has_failed && !retained.deleted.empty()) {
      EXPECT_LE(left.size(), 2U) << points;
    }
    if (!has_failed) {
      EXPECT_THAT(retained.deleted, ElementsAre(10, 20));
    }
  }
  EXPECT_GT(points, 15U);
}

TEST(RunDirectory, IsOpenedAlthoughLeftoversStay) {
  const auto start = with_steps({10});
  const std::string trash = "/run/" + marked_step_name(5, kTrash, kNonce);
  ASSERT_TRUE(start->make_directory(trash).ok());
  start->put_file(trash + "/.nfs01", "x");
  size_t point = 0;
  for (std::string operation = "begin"; !operation.empty(); ++point) {
    const auto files = start->copy();
    const size_t before = files->operations().size();
    files->fail_at(point, EBUSY);
    const auto run = RunDirectory::open(*files, "/run", "job");
    operation = files->has_failed() ? files->operations()[before + point] : "";
    if (operation.starts_with("unlink " + trash) || operation.starts_with("rmdir")) {
      EXPECT_TRUE(run.ok()) << operation << run.status();
      EXPECT_TRUE(*exists(*files, trash));
    }
  }
  EXPECT_GT(point, 8U);
}

TEST(RunDirectory, DeletesStraysWithTheirStep) {
  const auto files = with_steps({10, 20});
  files->put_file("/run/step-10/eval.json", "{}");
  auto run = RunDirectory::open(*files, "/run", "job");
  ASSERT_TRUE(run.ok());
  (*run)->note_verified(20);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, ElementsAre(10));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("'/run/step-10' is deleted with"), HasSubstr("'eval.json'")));
  EXPECT_THAT(*files->list("/run"), ElementsAre("lock", "step-20"));
}

TEST(RunDirectory, RemovesWhatDeadJobsLeft) {
  const auto files = with_steps({10});
  for (const std::string& name :
       {marked_step_name(20, kTemporary, kNonce), marked_step_name(5, kTrash, kNonce)}) {
    ASSERT_TRUE(files->make_directory("/run/" + name).ok());
    files->put_file("/run/" + name + "/a", "x");
  }
  files->put_file("/run/probe-" + std::string(kNonce), "x");
  files->put_file("/run/notes.txt", "the user's own");
  files->put_file("/run/step-20.tmp-mine", "the user's own");
  ASSERT_TRUE(RunDirectory::open(*files, "/run", "job").ok());
  EXPECT_THAT(*files->list("/run"),
              ElementsAre("lock", "notes.txt", "step-10", "step-20.tmp-mine"));
}

TEST(RunDirectory, SaysAtOnceThatNothingCanBeWritten) {
  const auto start = with_steps({10});
  size_t points = 0;
  for (bool has_failed = true; has_failed; ++points) {
    const auto files = start->copy();
    files->fail_at(points, EROFS);
    const auto run = RunDirectory::open(*files, "/run", "job");
    has_failed = files->has_failed();
    // Failing to look for leftovers, at the very end, is no error.
    const std::string& last = files->operations().back();
    if (has_failed && (last == "list /run" || last == "stat /run/step-10")) continue;
    EXPECT_NE(run.ok(), has_failed) << points;
    if (run.ok()) continue;
    EXPECT_THAT(text_of(run.status()), AllOf(HasSubstr("/run"), HasSubstr("errno")));
  }
  EXPECT_GT(points, 8U);
}

/// The same on a real file system.
class RunDirectoryOnDisk : public ::testing::Test {
 protected:
  testing::TemporaryDirectory directory_;
  PosixFileSystem files_;
};

TEST_F(RunDirectoryOnDisk, SavesLoadsAndDeletes) {
  const std::string path = directory_.path() + "/with space, ü and \"quotes\"";
  const SmallRun run{.directory = path, .world = 3};
  auto owner = RunDirectory::open(files_, path, holder_of_this_process());
  ASSERT_TRUE(owner.ok()) << owner.status();
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777U, 0700U);
  for (const int64_t step : {1, 2, 3}) {
    ASSERT_TRUE(run.save(files_, step).ok());
    (*owner)->note_verified(step);
  }
  EXPECT_TRUE(absl::IsAlreadyExists(run.save(files_, 3)));
  const auto newest = StepReader::open(files_, run.path_of(3));
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(testing::wrong_values(**newest, run), "");
  const auto oldest = StepReader::open(files_, run.path_of(1));
  EXPECT_THAT((*owner)->retain({.keep_last = 1}).deleted, ElementsAre(2)) << "1 is being read";
  EXPECT_EQ(testing::wrong_values(**oldest, run), "");
}

TEST_F(RunDirectoryOnDisk, Case59_RefusesASecondJobAndNamesTheFirst) {
  const std::string path = directory_.path() + "/run";
  auto first = RunDirectory::open(files_, path, holder_of_this_process());
  ASSERT_TRUE(first.ok());
  const auto second = RunDirectory::open(files_, path, "another");
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_THAT(text_of(second.status()),
              AllOf(HasSubstr(path + "/lock"),
                    HasSubstr("held by pid " + std::to_string(::getpid()) + " (started 20"),
                    HasSubstr(" UTC) on host ")));
  first->reset();
  EXPECT_TRUE(RunDirectory::open(files_, path, "another").ok());
}

TEST_F(RunDirectoryOnDisk, Case57_NamesThePathThatIsNone) {
  const std::string missing = directory_.path() + "/a/b";
  const absl::Status no_parent = RunDirectory::open(files_, missing, "job").status();
  EXPECT_TRUE(absl::IsNotFound(no_parent));
  EXPECT_THAT(text_of(no_parent),
              AllOf(HasSubstr(missing), HasSubstr("make '" + directory_.path() + "/a' first")));
  const std::string file = directory_.path() + "/file";
  std::ofstream(file) << "x";
  const absl::Status no_directory = RunDirectory::open(files_, file, "job").status();
  EXPECT_THAT(text_of(no_directory), AllOf(HasSubstr(file), HasSubstr("got a file, expected a")));
  const absl::Status too_long =
      RunDirectory::open(files_, directory_.path() + "/" + std::string(300, 'x'), "job").status();
  EXPECT_THAT(text_of(too_long), HasSubstr("File name too long"));
}

}  // namespace
}  // namespace tessera::internal
