#include "tessera/core/launch/failures.h"

#include <signal.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/process/error_file.h"
#include "tessera/core/process/process_status.h"

namespace tessera::internal {
namespace {

/// The time that ranks get to report which call they waited in. The rank that they blame gets the
/// same time to end.
constexpr std::chrono::milliseconds kTimeToReport(3000);

/// How shown_message() shows an incomplete character.
constexpr std::string_view kIncomplete = "\ufffd";

/// Returns true if `text`, or what follows one of its colons, is the beginning of `message`.
bool ends_with_begin_of(std::string_view message, std::string_view text) {
  constexpr std::string_view kColon = ": ";
  while (!text.empty() && !message.starts_with(text)) {
    const size_t colon = text.find(kColon);
    text.remove_prefix(colon == text.npos ? text.size() : colon + kColon.size());
  }
  return !text.empty();
}

}  // namespace

RankFailure Failures::failure_of(const RankProcess& rank, std::string text) const {
  const RankProgress& progress = page_.progress(rank.rank());
  return {.rank = rank.rank(),
          .name = rank.name(),
          .pid = rank.pid(),
          .exit_status = rank.exit_status(),
          .text = std::move(text),
          .step = progress.step(),
          .has_trained = progress.pace().last_step_ns > 0};
}

std::string Failures::add(const RankProcess& rank, std::string text) {
  const RankFailure failure = failure_of(rank, std::move(text));
  if (first_) return absl::StrCat("after that, ", describe(failure));
  if (unnamed_.empty()) {
    first_bad_exit_ = failure.exit_status->exit_code();
    report_deadline_ = Clock::now() + kTimeToReport;
  }
  unnamed_.push_back(failure);
  return "";
}

void Failures::add_frozen(const RankProcess& rank, std::string silence) {
  if (first_ || frozen_) return;
  frozen_ = failure_of(rank, "");
  frozen_->silence = std::move(silence);
  if (unnamed_.empty()) {
    first_bad_exit_ = 128 + SIGKILL;
    report_deadline_ = Clock::now() + kTimeToReport;
  }
  unnamed_.insert(unnamed_.begin(), *frozen_);
}

std::vector<std::string> Failures::name_first(const Ranks& ranks, bool may_wait) {
  if (first_ || unnamed_.empty()) return {};
  RankFailure first = unnamed_.front();
  if (frozen_) {
    const RankProcess& culprit = *ranks[static_cast<size_t>(frozen_->rank)];
    if (!culprit.exit_status() && may_wait && Clock::now() < *report_deadline_) return {};
    first.exit_status = culprit.exit_status();
  } else if (const auto note = page_.first_note(); note && note->culprit < std::ssize(ranks)) {
    const RankProcess& culprit = *ranks[note->culprit];
    if (!culprit.exit_status() && may_wait && Clock::now() < *report_deadline_) return {};
    first = failure_of(culprit, shown_message(note->text));
    first.is_cut_off = note->text.size() == JobPage::kLongestNote_bytes;
    // If the cut has split a character, remove what is left of it.
    if (first.is_cut_off && first.text.ends_with(kIncomplete)) {
      first.text.erase(first.text.size() - kIncomplete.size());
    }
    first.activity = process_activity(culprit.pid());
  }
  first_ = first;
  std::vector<std::string> said = {describe(first)};
  for (const RankFailure& failure : std::exchange(unnamed_, {})) {
    if (failure.rank != first.rank) said.push_back(absl::StrCat("after that, ", describe(failure)));
  }
  return said;
}

bool Failures::any_may_report(const Ranks& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](const RankProcess* rank) {
    return !rank->exit_status() && page_.is_open(rank->rank());
  });
}

std::string Failures::describe(const RankFailure& failure) const {
  std::string text = absl::StrCat(failure.name, " (pid ", failure.pid, ") ");
  if (!failure.silence.empty()) return absl::StrCat(text, failure.silence);
  if (failure.exit_status) {
    absl::StrAppend(&text, failure.exit_status->describe());
    if (failure.step > 0) absl::StrAppend(&text, " after step ", failure.step);
  } else {
    absl::StrAppend(&text, failure.activity.empty() ? "goes on" : failure.activity,
                    " while others wait for it");
  }
  const std::string hint =
      failure.exit_status ? kill_reasons_.hint(failure.exit_status->signal()) : "";
  if (!hint.empty()) absl::StrAppend(&text, "; ", hint);
  if (!failure.text.empty()) absl::StrAppend(&text, ": ", failure.text);
  return text;
}

std::string Failures::left_in(const std::string& path) const {
  if (!first_) return "";
  const std::string message = read_error_file(path);
  const bool is_told = absl::StrContains(describe(*first_), message) ||
                       (first_->is_cut_off && ends_with_begin_of(message, first_->text));
  return is_told ? "" : message;
}

int Failures::exit_code() const {
  if (!first_) return first_bad_exit_;
  const std::optional<ExitStatus>& exit_status = first_->exit_status;
  return exit_status && !exit_status->success() ? exit_status->exit_code() : first_bad_exit_;
}

}  // namespace tessera::internal
