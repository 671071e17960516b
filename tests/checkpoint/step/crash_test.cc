// A save that ends at any point: by a power failure, after which the disk may hold many states, or
// by a failing operation.
#include <algorithm>
#include <cerrno>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/tests/checkpoint/simulated_file_system.h"
#include "tessera/tests/checkpoint/small_run.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SimulatedFileSystem;
using testing::SmallRun;

const SmallRun kFirst{};
const SmallRun kSecond{.nonce = "fedcba9876543210fedcba9876543210"};

/// A run's directory with step 10, all of it durable.
std::unique_ptr<SimulatedFileSystem> with_first_step() {
  SimulatedFileSystem files;
  EXPECT_TRUE(files.make_directory(kFirst.directory).ok());
  EXPECT_TRUE(files.sync_directory("/").ok());
  const absl::Status status = kFirst.save(files, 10);
  EXPECT_TRUE(status.ok()) << status;
  return files.copy();
}

/// Calls `check` with every state that the disk may have or, if there are many, with 300 of them,
/// including the first (all is lost) and the last (all is kept). Returns their number.
size_t for_each_state(const SimulatedFileSystem& files,
                      const std::function<void(SimulatedFileSystem&)>& check) {
  constexpr size_t kMost = 300;
  const size_t states = files.crash_states();
  std::mt19937_64 random(states);
  std::set<size_t> chosen{0, states - 1};
  while (chosen.size() < std::min(states, kMost)) {
    chosen.insert(states <= kMost ? chosen.size() - 1 : random() % states);
  }
  for (const size_t state : chosen) check(*files.after_crash(state));
  return chosen.size();
}

/// The newest step; an error if there is none, or if a step with a final name is torn.
absl::StatusOr<std::unique_ptr<StepReader>> newest_step(SimulatedFileSystem& files) {
  const auto steps = list_steps(files, kFirst.directory);
  if (!steps.ok()) return steps.status();
  if (steps->empty()) return absl::NotFoundError("no step");
  auto reader = StepReader::open(files, kFirst.path_of(steps->back()));
  if (!reader.ok()) return reader;
  if (absl::Status status = (*reader)->verify_all(); !status.ok()) return status;
  return reader;
}

/// The step from which a run resumes; -1 and a test failure if none loads or its values are wrong.
int64_t resumed_step(SimulatedFileSystem& files) {
  const auto newest = newest_step(files);
  EXPECT_TRUE(newest.ok()) << newest.status();
  if (!newest.ok()) return -1;
  EXPECT_EQ(testing::wrong_values(**newest, kFirst), "");
  return (*newest)->manifest().step;
}

TEST(Crash, Case3_AtAnyOperationOfASaveLeavesTheRightStep) {
  const auto start = with_first_step();
  size_t points = 0, states = 0, resumed_at_old = 0, resumed_at_new = 0;
  for (bool has_crashed = true; has_crashed; ++points) {
    const auto files = start->copy();
    files->crash_at(points);
    const bool is_saved = kSecond.save(*files, 20).ok();
    has_crashed = files->has_failed();
    EXPECT_NE(is_saved, has_crashed);
    states += for_each_state(*files, [&](SimulatedFileSystem& disk) {
      const int64_t step = resumed_step(disk);
      // A step that was reported as saved must be there.
      EXPECT_TRUE(step == 20 || (!is_saved && step == 10)) << "crash at " << points;
      ++(step == 20 ? resumed_at_new : resumed_at_old);
      // The run can be resumed from it.
      auto run = RunDirectory::open(disk, kFirst.directory, "next job");
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_TRUE(kSecond.save(disk, 30).ok());
      EXPECT_EQ(resumed_step(disk), 30);
      const auto names = disk.list(kFirst.directory);
      for (const std::string& name : *names) {
        EXPECT_EQ(name.find(".tmp-"), std::string::npos) << name;
      }
    });
  }
  EXPECT_GE(points, 20U);
  EXPECT_GT(states, 200U);
  EXPECT_GT(resumed_at_old, 0U);
  EXPECT_GT(resumed_at_new, 0U);
}

TEST(Crash, Case66_AtAnyOperationOfADeletionLeavesAStep) {
  const auto start = with_first_step();
  ASSERT_TRUE(kSecond.save(*start, 20).ok());
  size_t points = 0;
  for (bool has_crashed = true; has_crashed; ++points) {
    const auto files = start->copy();
    auto run = RunDirectory::open(*files, kFirst.directory, "job");
    ASSERT_TRUE(run.ok()) << run.status();
    (*run)->note_verified(20);
    files->crash_at(points);
    const auto deleted = (*run)->retain({.keep_last = 1});
    has_crashed = files->has_failed();
    if (!has_crashed) {
      ASSERT_TRUE(deleted.status.ok()) << deleted.status;
      EXPECT_EQ(deleted.deleted, std::vector<int64_t>{10});
    }
    for_each_state(*files, [&](SimulatedFileSystem& disk) {
      EXPECT_EQ(resumed_step(disk), 20) << "crash at " << points;
      EXPECT_TRUE(RunDirectory::open(disk, kFirst.directory, "next job").ok());
      const auto steps = list_steps(disk, kFirst.directory);
      for (const int64_t step : *steps) {  // 10 is whole or absent
        const auto reader = StepReader::open(disk, kFirst.path_of(step));
        ASSERT_TRUE(reader.ok()) << reader.status();
        EXPECT_EQ(testing::wrong_values(**reader, kFirst), "");
      }
    });
  }
  EXPECT_GT(points, 10U);
}

TEST(Crash, Case56_AnOperationThatFailsLeavesTheOldStepAndNothingElse) {
  const auto start = with_first_step();
  const auto before = start->files_below(kFirst.directory);
  for (const int error : {EIO, ENOSPC, EDQUOT, EROFS}) {
    bool has_failed = true;
    for (size_t point = 0; has_failed; ++point) {
      const auto files = start->copy();
      files->fail_at(point, error);
      const absl::Status status = kSecond.save(*files, 20);
      has_failed = files->has_failed();
      EXPECT_NE(status.ok(), has_failed) << point;
      if (!has_failed) break;
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("[checkpoint] "), HasSubstr("/run"), HasSubstr("(errno ")));
      const std::string failed = files->operations()[point];
      if (failed == "fsync /run") {  // the fsync after the rename
        EXPECT_THAT(std::string(status.message()), HasSubstr("is whole and in its place"));
        EXPECT_EQ(resumed_step(*files), 20);
        continue;
      }
      EXPECT_EQ(files->files_below(kFirst.directory), before) << failed;
      EXPECT_EQ(resumed_step(*files), 10) << failed;
      // Even if the power fails next.
      for_each_state(*files, [](SimulatedFileSystem& disk) { EXPECT_EQ(resumed_step(disk), 10); });
      // The disk works again: the same step is saved.
      EXPECT_TRUE(kSecond.save(*files, 20).ok()) << failed;
    }
  }
}

TEST(Crash, Case55_ADiskThatIsFullAtAnySizeLeavesTheOldStep) {
  const auto start = with_first_step();
  const auto before = start->files_below(kFirst.directory);
  int64_t used = 0;
  for (const auto& [path, content] : before) used += static_cast<int64_t>(content.size());
  int64_t room = 0;
  for (bool is_saved = false; !is_saved; room += 13) {
    const auto files = start->copy();
    files->set_capacity(used + room);
    const absl::Status status = kSecond.save(*files, 20);
    is_saved = status.ok();
    if (is_saved) break;
    EXPECT_THAT(std::string(status.message()), HasSubstr("No space left on device (errno 28)"));
    ASSERT_EQ(files->files_below(kFirst.directory), before) << room;
    EXPECT_EQ(resumed_step(*files), 10);
  }
  EXPECT_GT(room, 1000);
}

/// A file system whose fsyncs of directories do nothing.
class WithoutSync : public SimulatedFileSystem {
 public:
  absl::Status sync_directory(const std::string&) override { return absl::OkStatus(); }
};

TEST(Crash, Control_ASaveWithoutSyncsOfDirectoriesIsCaught) {
  WithoutSync files;
  ASSERT_TRUE(files.make_directory(kFirst.directory).ok());
  ASSERT_TRUE(kFirst.save(files, 10).ok());
  size_t lost = 0;
  for_each_state(files, [&](SimulatedFileSystem& disk) {
    if (!newest_step(disk).ok()) ++lost;
  });
  EXPECT_GT(lost, 0U);
}

}  // namespace
}  // namespace tessera::internal
