#include "tessera/core/process/job_page.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

TEST(JobPage, StepsAreThoseOfTheRankAndSavedOnesThoseOfTheJob) {
  const auto launcher = page_of(2);
  const auto rank = JobPage::open(launcher->address(), 1);
  EXPECT_EQ(launcher->step(1), 0);
  EXPECT_EQ(launcher->saved_step(), 0);
  rank->note_step(137);
  rank->note_saved_step(100);
  EXPECT_EQ(launcher->step(0), 0);
  EXPECT_EQ(launcher->step(1), 137);
  EXPECT_EQ(launcher->saved_step(), 100);
  rank->note_failure(0, "text");
  EXPECT_EQ(launcher->step(1), 137) << "the note lies beside it";
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

}  // namespace
}  // namespace tessera::internal
