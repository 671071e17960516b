#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/job_table.h"
#include "tessera/core/process/failure_report.h"
#include "tessera/core/process/job_page.h"
#include "tessera/errors.h"
#include "tessera/tests/core/comm/nccl/nccl_ranks.h"

namespace tessera::internal {
namespace {

using nccl::Group;
using nccl::wait_on_host;
using testing::call_until_failure;
using ::testing::Each;
using testing::fake;
using ::testing::HasSubstr;
using testing::HostDevice;
using testing::impatient;
using testing::NcclRankOptions;
using ::testing::Not;
using testing::run_nccl_ranks_expecting_errors;
using testing::wait_for_failure;

// What the launcher is told. Ranks are threads of one process, which is rank 0 of three: a note
// that names no rank names that one.
class NcclNotes : public ::testing::Test {
 protected:
  void SetUp() override {
    fake().reset();
    const std::pair<const char*, std::string> variables[] = {
        {"TESSERA_JOB_PAGE", page().address()}, {"RANK", "0"}, {"WORLD_SIZE", "3"}};
    for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
    report_failures(0, 3);  // opens the page, or withdraws an earlier test's note
    for (const auto& [name, value] : variables) ::unsetenv(name);
    ASSERT_TRUE(page().is_open(0));
  }

  static JobPage& page() {
    static const auto made = *JobPage::create(3);  // a process looks for its page once
    return *made;
  }
  static std::optional<FailureNote> note() { return page().note(0); }
};

/// Records whether there is a note when a cause is published.
class NotedTable final : public JobTable {
 public:
  explicit NotedTable(const JobPage& page) : page_(page) {}

  std::string set_first(const std::string& key, const std::string& text) override {
    if (key == "nccl/failure") was_noted = page_.note(0).has_value();
    return JobTable::set_first(key, text);
  }

  std::optional<bool> was_noted;

 private:
  const JobPage& page_;
};

/// The table of a rank that does not answer inquiries.
class MuteTable final : public SharedTable {
 public:
  explicit MuteTable(std::shared_ptr<SharedTable> table) : table_(std::move(table)) {}

  std::optional<std::string> get(const std::string& key) override {
    return key == "nccl/inquiry" ? std::nullopt : SharedTable::get(key);
  }
  Message reply(const Message& request) override { return table_->reply(request); }

 private:
  const std::shared_ptr<SharedTable> table_;
};

TEST_F(NcclNotes, WhoIsMissingOrHasLeftAtATimeOutBeganIt) {
  for (const bool leaves : {false, true}) {
    SetUp();
    run_nccl_ranks_expecting_errors(
        3,
        [&](const std::shared_ptr<Group>& group, HostDevice&) {
          group->barrier("together");
          if (group->rank() != 2) {
            wait_on_host(*group->all_reduce(at::ones({8}), ReduceOp::kSum, "bucket 3"));
          } else if (!leaves) {
            wait_for_failure(*group);
          }
        },
        impatient());
    ASSERT_TRUE(note().has_value());
    EXPECT_EQ(note()->culprit, 2);
    EXPECT_THAT(note()->text, HasSubstr(testing::waited_impatiently() + "rank 2, which "));
  }
}

TEST_F(NcclNotes, WhoDoesNotComeAtTheStartBeganIt) {
  NcclRankOptions options = impatient();
  options.absent_rank = 1;
  run_nccl_ranks_expecting_errors(
      3, [](const std::shared_ptr<Group>&, HostDevice&) {}, options);
  ASSERT_TRUE(note().has_value());
  EXPECT_EQ(note()->culprit, 1);
}

TEST_F(NcclNotes, AnOwnFailureIsNotedBeforeItIsPublished) {
  const auto table = std::make_shared<NotedTable>(page());
  NcclRankOptions options;
  options.make = [&](nccl::WorldOptions world) {
    world.table = table;
    return nccl::make_world(std::move(world));
  };
  run_nccl_ranks_expecting_errors(
      1,
      [](const std::shared_ptr<Group>& group, HostDevice&) {
        group->barrier("together");
        throw std::runtime_error("the model broke");
      },
      options);
  ASSERT_TRUE(note().has_value());
  EXPECT_EQ(note()->culprit, 0);
  EXPECT_EQ(note()->text, "rank 0 left while an exception unwound");
  EXPECT_EQ(table->was_noted, true);
}

TEST_F(NcclNotes, WhatAnotherRankHasPublishedIsNotNoted) {
  std::shared_ptr<SharedTable> table;
  NcclRankOptions options;
  options.make = [&](nccl::WorldOptions world) {
    table = world.table;
    return nccl::make_world(std::move(world));
  };
  const auto errors = run_nccl_ranks_expecting_errors(
      1,
      [&](const std::shared_ptr<Group>& group, HostDevice&) {
        table->set_first("nccl/failure", "rank 1 has had enough");
        wait_for_failure(*group);  // its exception unwinds the group
      },
      options);
  EXPECT_THAT(errors, Each(HasSubstr("rank 1 has had enough")));
  EXPECT_FALSE(note().has_value()) << note()->text;
}

TEST_F(NcclNotes, WhoDoesNotAnswerWhenNcclHasLostARankBeganIt) {
  for (const bool is_mute : {true, false}) {
    SetUp();
    NcclRankOptions options;
    options.make = [&](nccl::WorldOptions world) {
      const bool is_this = is_mute && world.rank == 2;
      if (is_this) world.table = std::make_shared<MuteTable>(world.table);
      return nccl::make_world(std::move(world));
    };
    const auto errors = run_nccl_ranks_expecting_errors(
        3,
        [](const std::shared_ptr<Group>& group, HostDevice&) {
          group->barrier();
          if (group->rank() == 1) {
            fake().fail("world: gather lane", 1, static_cast<int>(nccl::Result::kRemoteError));
          }
          call_until_failure(*group);
        },
        options);
    ASSERT_TRUE(note().has_value());
    EXPECT_EQ(note()->culprit, is_mute ? 2 : 0);
    const auto is_named = HasSubstr("on communicator 'world: gather lane'; rank 2 does not answer");
    if (is_mute) {
      EXPECT_THAT(errors, Each(is_named));
    } else {
      EXPECT_THAT(errors, Each(Not(is_named))) << "the control";
    }
  }
}

}  // namespace
}  // namespace tessera::internal
