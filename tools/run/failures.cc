#include "tessera/tools/run/failures.h"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

/// How long ranks may take to say which call they waited in, and the one that they name to end.
constexpr std::chrono::milliseconds kTimeToReport(3000);

}  // namespace

absl::StatusOr<std::unique_ptr<Failures>> Failures::create(int ranks) {
  auto page = JobPage::create(ranks);
  if (!page.ok()) return page.status();
  return std::unique_ptr<Failures>(new Failures(*std::move(page)));
}

Failure Failures::failure_of(const Worker& worker, std::string text) const {
  return {worker.rank(),   worker.name(),   worker.pid(),
          worker.ending(), std::move(text), page_->step(worker.rank())};
}

std::string Failures::add(const Worker& worker) {
  const Failure failure = failure_of(worker, "");
  if (first_) return absl::StrCat("after that, ", describe(failure));
  if (unnamed_.empty()) {
    first_bad_exit_ = failure.ending->exit_code();
    report_deadline_ = Clock::now() + kTimeToReport;
  }
  unnamed_.push_back(failure);
  return "";
}

std::vector<std::string> Failures::name_first(const Workers& workers, bool may_wait) {
  if (first_ || unnamed_.empty()) return {};
  Failure first = unnamed_.front();
  if (const auto note = page_->first_note(); note && note->culprit < std::ssize(workers)) {
    const Worker& culprit = *workers[note->culprit];
    if (!culprit.ending() && may_wait && Clock::now() < *report_deadline_) return {};
    first = failure_of(culprit, note->text);
    first.activity = process_activity(culprit.pid());
  }
  first_ = first;
  std::vector<std::string> said = {describe(first)};
  for (const Failure& failure : std::exchange(unnamed_, {})) {
    if (failure.rank != first.rank) said.push_back(absl::StrCat("after that, ", describe(failure)));
  }
  return said;
}

bool Failures::any_may_report(const Workers& workers) const {
  return std::any_of(workers.begin(), workers.end(), [this](const auto& worker) {
    return !worker->ending() && page_->is_open(worker->rank());
  });
}

std::string Failures::describe(const Failure& failure) const {
  std::string text = absl::StrCat(failure.name, " (pid ", failure.pid, ") ");
  if (failure.ending) {
    absl::StrAppend(&text, failure.ending->describe());
    if (failure.step > 0) absl::StrAppend(&text, " after step ", failure.step);
  } else {
    absl::StrAppend(&text, failure.activity.empty() ? "goes on" : failure.activity,
                    " while others wait for it");
  }
  const std::string hint = failure.ending ? kill_reasons_.hint(failure.ending->signal()) : "";
  if (!hint.empty()) absl::StrAppend(&text, "; ", hint);
  if (!failure.text.empty()) absl::StrAppend(&text, ": ", failure.text);
  return text;
}

int Failures::exit_code() const {
  if (!first_) return first_bad_exit_;
  const std::optional<Ending>& ending = first_->ending;
  return ending && !ending->success() ? ending->exit_code() : first_bad_exit_;
}

}  // namespace tessera::internal
