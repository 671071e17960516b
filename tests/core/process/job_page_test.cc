#include "tessera/core/process/job_page.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/tests/support/forked_child.h"

namespace tessera::internal {
namespace {

std::unique_ptr<JobPage> page_of(int ranks) {
  auto page = JobPage::create(ranks);
  EXPECT_TRUE(page.ok()) << page.status();
  return *std::move(page);
}

TEST(JobPage, TheEarliestNoteCounts) {
  const auto launcher = page_of(3);
  const auto first = JobPage::open(launcher->address(), 0);
  const auto last = JobPage::open(launcher->address(), 2);
  ASSERT_TRUE(first != nullptr && last != nullptr);
  EXPECT_TRUE(launcher->is_open(0));
  EXPECT_FALSE(launcher->is_open(1));
  EXPECT_FALSE(launcher->first_note().has_value());

  last->note_failure(1, "misses rank 1");
  first->note_failure(0, "misses rank 2");
  last->note_failure(0, "a later one of the same rank");
  ASSERT_TRUE(launcher->first_note().has_value());
  EXPECT_EQ(launcher->first_note()->culprit, 1);
  EXPECT_EQ(launcher->first_note()->text, "misses rank 1");
  EXPECT_EQ(launcher->note(0)->text, "misses rank 2");

  last->forget_failure();
  EXPECT_EQ(launcher->first_note()->text, "misses rank 2");
}

TEST(JobPage, AnErrorExplainsTheNoteThatCameBeforeIt) {
  const auto launcher = page_of(3);
  const auto rank = JobPage::open(launcher->address(), 1);
  rank->note_failure(1, "rank 1 left");
  const int64_t when_ns = launcher->note(1)->when_ns;
  rank->explain_failure("no data");
  rank->explain_failure("no data");
  EXPECT_EQ(launcher->note(1)->text, "rank 1 left: no data");
  EXPECT_EQ(launcher->note(1)->when_ns, when_ns) << "the peers' notes are later";
  rank->explain_failure("[comm] rank 1 left: no data");
  rank->explain_failure(std::string(5000, 'x'));
  EXPECT_EQ(launcher->note(1)->text, "rank 1 left: no data: " + std::string(1978, 'x'));

  const auto other = JobPage::open(launcher->address(), 2);
  other->note_failure(1, "misses rank 1");
  other->explain_failure("timed out");
  EXPECT_EQ(launcher->note(2)->text, "misses rank 1") << "of another rank it knows no more";
  const auto silent = JobPage::open(launcher->address(), 0);
  silent->explain_failure("no model");
  EXPECT_EQ(launcher->note(0)->text, "no model");
}

TEST(JobPage, ARankThatStartsAgainHasNotFailed) {
  const auto launcher = page_of(1);
  JobPage::open(launcher->address(), 0)->note_failure(0, "the first time");
  EXPECT_TRUE(launcher->note(0).has_value());
  JobPage::open(launcher->address(), 0);
  EXPECT_FALSE(launcher->note(0).has_value());
}

TEST(JobPage, ARankThatArrivesIsKnownBeforeItFailsOrTrains) {
  const auto launcher = page_of(2);
  EXPECT_TRUE(launcher->is_reachable());
  EXPECT_EQ(launcher->rank_record(1).own_pid, 0);
  JobPage::note_arrival(launcher->address(), 1, 4711);
  EXPECT_EQ(launcher->rank_record(1).own_pid, 4711);
  EXPECT_EQ(launcher->rank_record(0).own_pid, 0);
  EXPECT_FALSE(launcher->is_open(1)) << "it waits for nobody yet";
  JobPage::note_arrival(launcher->address() + "0", 0);
  EXPECT_EQ(launcher->rank_record(0).own_pid, 0) << "of another job";
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0), 0);
  EXPECT_FALSE(launcher->is_reachable());
  ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 1), 0);
}

TEST(JobPage, StepsAreThoseOfTheRankAndSavedOnesThoseOfTheJob) {
  const auto launcher = page_of(2);
  const auto rank = JobPage::open(launcher->address(), 1);
  EXPECT_EQ(launcher->progress(1).step(), 0);
  EXPECT_EQ(launcher->saved_step(), 0);
  rank->own_progress().note_step(137);
  rank->note_saved_step(100);
  EXPECT_EQ(launcher->progress(0).step(), 0);
  EXPECT_EQ(launcher->progress(1).step(), 137);
  EXPECT_EQ(launcher->saved_step(), 100);
  rank->note_failure(0, "text");
  EXPECT_EQ(launcher->progress(1).step(), 137) << "the note lies beside it";
}

TEST(JobPage, WhatIsReadIsBounded) {
  const auto launcher = page_of(2);
  const auto rank = JobPage::open(launcher->address(), 1);
  const std::string text(100000, 'x');
  rank->note_failure(50000000, text);
  EXPECT_EQ(launcher->note(1)->culprit, 1) << "a rank that there is not";
  EXPECT_EQ(launcher->note(1)->text, text.substr(0, 2000));
}

TEST(JobPage, OtherAddressesLeadNowhere) {
  const auto launcher = page_of(2);
  const std::string address = launcher->address();
  const size_t colon = address.find(':');
  const std::string file = address.substr(0, colon);
  const std::string rest = address.substr(colon);
  EXPECT_NE(JobPage::open(address, 1), nullptr) << "the control";
  EXPECT_EQ(JobPage::open(address, 2), nullptr);
  EXPECT_EQ(JobPage::open(address, -1), nullptr);
  for (const std::string& other :
       {std::string(), file, file + ":2", address + "0", file + ":3" + rest.substr(2),
        "/dev/null" + rest, "/proc/self/exe" + rest, "/no/such/file" + rest,
        file + ":-1" + rest.substr(2), file + ":2147483647" + rest.substr(2)}) {
    EXPECT_EQ(JobPage::open(other, 0), nullptr) << other;
  }
  const auto another = page_of(2);
  EXPECT_EQ(JobPage::open(another->address().substr(0, another->address().find(':')) + rest, 0),
            nullptr)
      << "of another job";
}

/// Where `page`, of this process, lies.
int descriptor_of(const JobPage& page) {
  const std::string address = page.address();
  const size_t slash = address.rfind('/');
  return std::stoi(address.substr(slash + 1));
}

TEST(JobPage, AnyProcessOfTheUserMayViewIt) {
  auto made = JobPage::create(3, {.restart_count = 1, .max_restarts = 2, .is_supervised = true});
  ASSERT_TRUE(made.ok());
  JobPage& launcher = **made;
  launcher.note_begin(1, 4711);
  launcher.note_begin(2, 4712);
  launcher.note_end(2, 3 << 8);
  const auto rank = JobPage::open(launcher.address(), 1);
  rank->own_progress().note_step(137);
  rank->own_progress().note_wait(1, "barrier", "world", 0, {2});

  const auto view = JobPage::view(::getpid(), descriptor_of(launcher));
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->ranks(), 3);
  EXPECT_EQ(view->outline().launcher, ::getpid());
  EXPECT_EQ(view->outline().restart_count, 1);
  EXPECT_TRUE(view->outline().is_supervised);
  EXPECT_EQ(view->rank_record(0).pid, 0);
  EXPECT_EQ(view->rank_record(1).pid, 4711);
  EXPECT_EQ(view->rank_record(1).own_pid, ::getpid());
  EXPECT_FALSE(view->rank_record(1).wait_status.has_value());
  EXPECT_EQ(view->rank_record(2).wait_status, 3 << 8);
  EXPECT_EQ(view->progress(1).step(), 137);
  EXPECT_EQ(view->progress(1).wait()->call, "barrier");
  EXPECT_FALSE(view->progress(0).wait().has_value());
}

TEST(JobPage, AViewIsOfThePageOfThatProcessOnly) {
  const auto launcher = page_of(2);
  const int fd = descriptor_of(*launcher);
  EXPECT_TRUE(JobPage::may_be_at(::getpid(), fd));
  EXPECT_NE(JobPage::view(::getpid(), fd), nullptr) << "the control";
  EXPECT_FALSE(JobPage::may_be_at(::getpid(), 1 << 20));
  EXPECT_EQ(JobPage::view(::getpid(), 1 << 20), nullptr);
  EXPECT_EQ(JobPage::view(::getpid(), STDIN_FILENO), nullptr);
  EXPECT_EQ(JobPage::view(-1, fd), nullptr);
  // A child that inherits it is not the launcher.
  const testing::ForkedChild child = testing::run_in_fork([&] {
    const bool is_there = JobPage::may_be_at(::getpid(), fd);
    return absl::StrCat(is_there, JobPage::view(::getpid(), fd) != nullptr);
  });
  EXPECT_EQ(child.text, "10");
  // Of another version, or too short: it has its name only.
  for (const size_t size : {size_t{0}, size_t{64}, size_t{1} << 20}) {
    const FileDescriptor other(::memfd_create("tessera-job", MFD_CLOEXEC));
    ASSERT_EQ(::ftruncate(other.get(), static_cast<off_t>(size)), 0);
    EXPECT_TRUE(JobPage::may_be_at(::getpid(), other.get()));
    EXPECT_EQ(JobPage::view(::getpid(), other.get()), nullptr) << size;
  }
}

}  // namespace
}  // namespace tessera::internal
