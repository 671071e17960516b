#include "tessera/core/launch/failures.h"

#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

/// How long ranks may take to say which call they waited in, and the one that they name to end.
constexpr std::chrono::milliseconds kTimeToReport(3000);

/// Processes that the kernel has killed for lack of memory, on this host; 0 if nobody counts.
int64_t count_oom_kills() {
  std::ifstream file("/proc/vmstat");
  std::string name;
  int64_t count = 0;
  while (file >> name >> count) {
    if (name == "oom_kill") return count;
  }
  return 0;
}

}  // namespace

Failures::Failures(std::unique_ptr<JobPage> page)
    : page_(std::move(page)), oom_kills_before_(count_oom_kills()) {}

absl::StatusOr<std::unique_ptr<Failures>> Failures::create(int ranks) {
  auto page = JobPage::create(ranks);
  if (!page.ok()) return page.status();
  return std::unique_ptr<Failures>(new Failures(*std::move(page)));
}

std::string Failures::add(const RankProcess& rank) {
  const Failure failure{rank.rank(), rank.pid(), rank.ending(), ""};
  if (first_) return absl::StrCat("after that, ", describe(failure));
  if (unnamed_.empty()) {
    first_bad_exit_ = failure.ending->exit_code();
    report_deadline_ = Clock::now() + kTimeToReport;
  }
  unnamed_.push_back(failure);
  return "";
}

std::vector<std::string> Failures::name_first(const Ranks& ranks, bool may_wait) {
  if (first_ || unnamed_.empty()) return {};
  Failure first = unnamed_.front();
  if (const auto note = page_->first_note(); note && note->culprit < std::ssize(ranks)) {
    const RankProcess& culprit = *ranks[note->culprit];
    if (!culprit.ending() && may_wait && Clock::now() < *report_deadline_) return {};
    first = {culprit.rank(), culprit.pid(), culprit.ending(), note->text};
    first.activity = process_activity(culprit.pid());
  }
  first_ = first;
  std::vector<std::string> said = {describe(first)};
  for (const Failure& failure : std::exchange(unnamed_, {})) {
    if (failure.rank != first.rank) said.push_back(absl::StrCat("after that, ", describe(failure)));
  }
  return said;
}

bool Failures::any_may_report(const Ranks& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](const RankProcess* rank) {
    return !rank->ending() && page_->is_open(rank->rank());
  });
}

std::string Failures::describe(const Failure& failure) const {
  std::string text = absl::StrCat("rank ", failure.rank, " (pid ", failure.pid, ") ");
  if (failure.ending) {
    absl::StrAppend(&text, failure.ending->describe());
  } else {
    absl::StrAppend(&text, failure.activity.empty() ? "goes on" : failure.activity,
                    " while others wait for it");
  }
  const int64_t kills = count_oom_kills() - oom_kills_before_;
  if (failure.ending && failure.ending->signal() == SIGKILL && kills > 0) {
    absl::StrAppend(&text, "; since the start the kernel has killed ", kills,
                    kills == 1 ? " process" : " processes",
                    " for lack of memory (see dmesg): use less memory or fewer ranks");
  }
  if (!failure.text.empty()) absl::StrAppend(&text, ": ", failure.text);
  return text;
}

int Failures::exit_code() const {
  if (!first_) return first_bad_exit_;
  const std::optional<Ending>& ending = first_->ending;
  return ending && !ending->success() ? ending->exit_code() : first_bad_exit_;
}

}  // namespace tessera::internal
