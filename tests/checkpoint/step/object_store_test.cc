// Steps in an object store, which has no rename: saving, deleting or setting aside a step ends at
// any point, by a kill or by a failing request, whether or not that was carried out.
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/tests/checkpoint/memory_store.h"
#include "tessera/tests/checkpoint/small_run.h"

namespace tessera::internal {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::MemoryStore;
using testing::SmallRun;

const SmallRun kStored{};
const SmallRun kStoredNext{.nonce = "fedcba9876543210fedcba9876543210"};

std::shared_ptr<MemoryStore> store_with(const std::vector<int64_t>& steps) {
  auto store = std::make_shared<MemoryStore>();
  for (const int64_t step : steps) {
    const absl::Status status = kStored.save(*store, step);
    EXPECT_TRUE(status.ok()) << status;
  }
  return store;
}

/// Describes what is wrong with a visible step; "" if all are whole.
std::string torn_step_in(MemoryStore& store) {
  const auto steps = list_steps(store, kStored.directory);
  if (!steps.ok()) return testing::text_of(steps.status());
  for (const int64_t step : *steps) {
    const auto reader = StepReader::open(store, kStored.path_of(step));
    if (!reader.ok()) return testing::text_of(reader.status());
    const std::string wrong = testing::wrong_values(**reader, kStored);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// The run's objects that are in no step, not even one that was set aside.
std::vector<std::string> rest_in(const MemoryStore& store) {
  std::vector<std::string> rest;
  const auto objects = store.objects(kStored.directory + "/");
  for (const auto& [key, bytes] : objects) {
    if (!objects.contains(parent_path(key) + "/" + kManifestName)) rest.push_back(key);
  }
  return rest;
}

/// Makes each request of the function returned by `act` fail in each way, on a copy of `start`, and
/// calls `test` with that copy, with what a later job finds, and with the function's result. `act`
/// may make requests before. Returns the number of faults.
template <typename Act, typename Test>
size_t for_each_fault(const MemoryStore& start, const Act& act, const Test& test) {
  size_t faults = 0;
  for (const bool stops : {false, true}) {
    for (const bool is_done : {false, true}) {
      bool has_failed = true;
      for (size_t point = 0; has_failed; ++point, ++faults) {
        const auto store = start.copy();
        const auto body = act(*store);
        store->fault_at(point, {.is_done = is_done, .stops = stops});
        const bool is_well = body();
        has_failed = store->has_failed();
        if (!has_failed) break;
        SCOPED_TRACE(::testing::Message() << "request " << point << (is_done ? ", done" : "")
                                          << (stops ? ", the last one" : ""));
        test(*store, *store->copy(), is_well);
      }
    }
  }
  return faults;
}

/// Expects that the next job removes everything that is in no step.
void expect_cleaned(MemoryStore& store) {
  const auto run = RunDirectory::open(store, kStored.directory, "next job");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_THAT(rest_in(store), IsEmpty());
  EXPECT_EQ(torn_step_in(store), "");
}

TEST(StepInAStore, IsThereOnceItsManifestIs) {
  const auto store = store_with({10, 20});
  EXPECT_EQ(store->requests().back(), "put /run/step-20/manifest.json");
  EXPECT_THAT(*store->list("/run"), ElementsAre("step-10", "step-20"));
  EXPECT_EQ(torn_step_in(*store), "");
  EXPECT_TRUE(absl::IsAlreadyExists(kStoredNext.save(*store, 20)));
  store->erase("/run/step-20/manifest.json");
  EXPECT_THAT(*list_steps(*store, "/run"), ElementsAre(10));
  EXPECT_TRUE(absl::IsNotFound(StepReader::open(*store, "/run/step-20").status()));
  EXPECT_FALSE(rest_in(*store).empty());
  expect_cleaned(*store);
  EXPECT_TRUE(kStoredNext.save(*store, 20).ok());
}

TEST(StepInAStore, IsTheNewestOneWholeWhateverStopsASave) {
  size_t at_old = 0, at_new = 0, with_rest = 0;
  const size_t faults = for_each_fault(
      *store_with({10}),
      [](MemoryStore& store) { return [&] { return kStoredNext.save(store, 20).ok(); }; },
      [&](MemoryStore& store, MemoryStore& later, bool is_saved) {
        EXPECT_FALSE(is_saved);
        EXPECT_EQ(torn_step_in(later), "");
        const bool is_there = *exists(later, "/run/step-20/manifest.json");
        if (is_there) {
          EXPECT_EQ(store.requests().back(), "put /run/step-20/manifest.json");
        }
        ++(is_there ? at_new : at_old);
        with_rest += rest_in(later).empty() ? 0 : 1;
        expect_cleaned(later);
        EXPECT_TRUE(kStoredNext.save(later, 30).ok());
        EXPECT_EQ(torn_step_in(later), "");
        EXPECT_EQ(list_steps(later, "/run")->back(), 30);
      });
  EXPECT_GT(faults, 40U);
  EXPECT_EQ(at_new, 1U) << "killed after the manifest was put";
  EXPECT_GT(at_old, 40U);
  EXPECT_GT(with_rest, 10U);
}

TEST(StepInAStore, IsGivenUpWithoutARestWhereARequestFails) {
  const auto start = store_with({10});
  for_each_fault(
      *start, [](MemoryStore& store) { return [&] { return kStoredNext.save(store, 20).ok(); }; },
      [&](MemoryStore& store, MemoryStore& later, bool is_saved) {
        EXPECT_FALSE(is_saved);
        if (!store.entry("/run/step-10/manifest.json").ok()) return;  // the store has stopped
        EXPECT_EQ(later.objects(), start->objects());
        EXPECT_TRUE(kStoredNext.save(store, 20).ok());
      });
}

TEST(StepInAStore, StaysWhereItsCopyIsRefusedByACodeThatMayMeanDamage) {
  for (const auto code : {absl::StatusCode::kNotFound, absl::StatusCode::kFailedPrecondition}) {
    const auto store = store_with({10});
    const auto before = store->objects("/run/step-10/");
    store->refuse_puts(".safetensors", code);
    EXPECT_EQ(move_step(*store, "/run/step-10", "/run/step-10.away").code(), code);
    EXPECT_EQ(store->objects("/run/step-10/"), before);
  }
}

TEST(StepInAStore, OfAnotherJobIsLeftAlone) {
  const auto store = store_with({10});
  ASSERT_TRUE(begin_step(*store, "/run", 20, kStored.nonce).ok());
  ASSERT_TRUE(kStoredNext.save(*store, 20).ok()) << "the other job is faster";
  const auto theirs = store->objects();
  const auto reader = StepReader::open(*store, "/run/step-20");
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(absl::IsAlreadyExists(commit_step(*store, "/run", (*reader)->manifest())));
  EXPECT_TRUE(abandon_step(*store, "/run", 20, kStored.nonce).ok());
  EXPECT_EQ(store->objects(), theirs);
}

TEST(StepInAStore, IsDeletedWholeOrNotWhateverStopsIt) {
  const auto start = store_with({10, 20, 30});
  size_t with_rest = 0;
  const size_t faults = for_each_fault(
      *start,
      [](MemoryStore& store) {
        auto run = RunDirectory::open(store, "/run", "job");
        EXPECT_TRUE(run.ok()) << run.status();
        (*run)->note_verified(30);
        return [run = std::shared_ptr<RunDirectory>(*std::move(run))] {
          return run->retain({.keep_last = 1}).status.ok();
        };
      },
      [&](MemoryStore&, MemoryStore& later, bool) {
        EXPECT_EQ(torn_step_in(later), "");
        EXPECT_THAT(*list_steps(later, "/run"), Contains(30));
        with_rest += rest_in(later).empty() ? 0 : 1;
        expect_cleaned(later);
      });
  EXPECT_GT(faults, 60U);
  EXPECT_GT(with_rest, 4U);
  const auto run = RunDirectory::open(*start, "/run", "job");
  (*run)->note_verified(30);
  EXPECT_THAT((*run)->retain({.keep_last = 1}).deleted, ElementsAre(10, 20));
  EXPECT_THAT(*start->list("/run"), ElementsAre("step-30"));
}

TEST(StepInAStore, StaysWholeWhereItsManifestCannotBeRemoved) {
  const auto store = store_with({10, 20});
  const auto before = store->objects();
  auto run = RunDirectory::open(*store, "/run", "job");
  (*run)->note_verified(20);
  store->refuse_removals("/step-10/manifest.json");
  const auto retained = (*run)->retain({.keep_last = 1});
  EXPECT_THAT(testing::text_of(retained.status),
              HasSubstr("cannot remove '/run/step-10/manifest.json'"));
  EXPECT_THAT(retained.deleted, IsEmpty());
  EXPECT_EQ(store->objects(), before);
}

/// Returns true if the run has all objects of `step`, under its own name or another.
bool has_objects_of(const MemoryStore& store, const std::map<std::string, std::string>& step) {
  std::map<std::string, std::map<std::string, std::string>> directories;
  for (const auto& [key, bytes] : store.objects("/run/")) {
    directories[parent_path(key)][key.substr(key.rfind('/') + 1)] = bytes;
  }
  return std::any_of(directories.begin(), directories.end(), [&](const auto& directory) {
    return directory.first.starts_with("step-20") && directory.second == step;
  });
}

TEST(StepInAStore, IsNotLostWhereItIsSetAsideWhateverStopsIt) {
  const auto start = store_with({10, 20});
  const auto step = start->objects("/run/step-20/");
  ASSERT_EQ(step.size(), 3U);
  const auto set_aside = [](MemoryStore& store) {
    auto run = RunDirectory::open(store, "/run", "job");
    EXPECT_TRUE(run.ok()) << run.status();
    return [run = std::shared_ptr<RunDirectory>(*std::move(run))] {
      return run->set_aside_after(10, "replaced").ok();
    };
  };
  size_t with_rest = 0;
  const size_t faults =
      for_each_fault(*start, set_aside, [&](MemoryStore&, MemoryStore& later, bool is_well) {
        EXPECT_FALSE(is_well);
        EXPECT_TRUE(has_objects_of(later, step));
        EXPECT_EQ(torn_step_in(later), "");
        with_rest += rest_in(later).empty() ? 0 : 1;
        expect_cleaned(later);
        EXPECT_TRUE(has_objects_of(later, step));
      });
  EXPECT_GT(faults, 60U);
  EXPECT_GT(with_rest, 10U);
  EXPECT_TRUE(set_aside(*start)());
  EXPECT_THAT(*list_steps(*start, "/run"), ElementsAre(10));
  EXPECT_TRUE(has_objects_of(*start, step));
  EXPECT_THAT(rest_in(*start), IsEmpty());
  EXPECT_TRUE(kStoredNext.save(*start, 20).ok());
  EXPECT_TRUE(has_objects_of(*start, step)) << "beside the new one";
}

TEST(StepInAStore, ControlAStepWithoutOneOfItsFilesIsTorn) {
  const auto store = store_with({10});
  store->erase("/run/step-10/rank-00001-of-00002.safetensors");
  EXPECT_THAT(torn_step_in(*store), HasSubstr("rank-00001-of-00002.safetensors"));
}

TEST(RunInAStore, LeavesWhatIsTheUsersOwn) {
  const auto store = store_with({10});
  for (const char* const key : {"/run/notes.txt", "/run/step-5.tmp-mine/a", "/run/a/b/c"}) {
    store->put(key, "x");
  }
  const auto before = store->objects();
  ASSERT_TRUE(RunDirectory::open(*store, "/run", "job").ok());
  EXPECT_EQ(store->objects(), before);
  // Other objects next to a step's files, even in subfolders, go with them.
  store->put("/run/step-10/eval/a.json", "{}");
  auto run = RunDirectory::open(*store, "/run", "job");
  ASSERT_TRUE((*run)->set_aside(10, "replaced").ok());
  for (const auto& [key, bytes] : store->objects("/run/step-10")) {
    EXPECT_TRUE(key.starts_with(".replaced-")) << key;
  }
  EXPECT_EQ(store->objects().size(), before.size() + 1);
}

/// A store whose program has its own locks, held by another process.
class HeldStore final : public MemoryStore {
 public:
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                 const std::string& holder) override {
    return absl::FailedPreconditionError("cannot lock " + path + " for " + holder + ": held by b");
  }
};

TEST(RunInAStore, IsLockedWhereTheStoreHasLocks) {
  HeldStore held;
  EXPECT_THAT(testing::text_of(RunDirectory::open(held, "/run", "a").status()),
              HasSubstr("cannot lock /run/lock for a: held by b"));
  MemoryStore without;
  const auto one = RunDirectory::open(without, "/run", "a");
  EXPECT_TRUE(one.ok()) << one.status();
  EXPECT_TRUE(RunDirectory::open(without, "/run", "b").ok()) << "nothing keeps it out";
}

}  // namespace
}  // namespace tessera::internal
