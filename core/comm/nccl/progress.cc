#include "tessera/core/comm/nccl/progress.h"

#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

namespace tessera::internal::nccl {
namespace {

std::string absence(const Report& report) {
  switch (report.state) {
    case Report::State::kSilent:
      return ", which does not answer";
    case Report::State::kWithoutGroup:
      return ", which has not made this group";
    case Report::State::kIn:
      return absl::StrCat(", which has begun ", report.begun, " collectives");
    case Report::State::kLeft:
      return absl::StrCat(", which left the group after ", report.begun, " collectives");
  }
  return "";
}

}  // namespace

NumberedCall NumberedCall::of(const Collective& collective) {
  return {.signature = collective.signature(), .tag = std::string(collective.tag), .place = ""};
}

NumberedCall NumberedCall::of(Op op, std::string_view tag) {
  return of(Collective{.op = op, .tag = tag});
}

Progress::Progress(std::string group, std::vector<int> world_ranks)
    : group_(std::move(group)), world_ranks_(std::move(world_ranks)) {}

std::string Progress::name_of(int rank) const {
  const int world_rank = world_ranks_[rank];
  return absl::StrCat("rank ", world_rank, world_rank == rank ? "" : " of the world");
}

void Progress::begin(NumberedCall& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  call.sequence = begun_++;
  last_[call.sequence % kKept] = call;
}

void Progress::leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  left_ = true;
}

std::string Progress::report(int64_t sequence) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text = absl::StrCat(left_ ? "left" : "in", " ", begun_);
  if (sequence < 0 || sequence >= begun_) return text;
  const NumberedCall& call = last_[sequence % kKept];
  return absl::StrCat(
      text, " ", call.sequence == sequence ? call.text() : "a call that is no longer recorded");
}

Report Report::parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Report report;
  if (parts[0] == "none") report.state = State::kWithoutGroup;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[1], &report.begun)) return report;
  report.state = parts[0] == "left" ? State::kLeft : State::kIn;
  if (parts.size() == 3) report.text = parts[2];
  return report;
}

std::string explain_late_message(const Progress& progress, const NumberedCall& call,
                                 int64_t waited_ms, const std::vector<Report>& reports) {
  const int peer = call.signature.peer;
  return absl::StrCat("timed out: waited ", waited_ms, " ms for ", progress.name_of(peer),
                      absence(reports[peer]), ", in ", call.text());
}

std::string explain_time_out(const Progress& progress, int64_t sequence, int64_t waited_ms,
                             const std::vector<Report>& reports) {
  std::string missing;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].begun > sequence && sequence >= 0) continue;
    if (sequence < 0 && reports[rank].state != Report::State::kSilent) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", progress.name_of(static_cast<int>(rank)),
                    absence(reports[rank]));
  }
  const std::string waited = absl::StrCat("timed out: waited ", waited_ms, " ms for ");
  if (!missing.empty()) return waited + missing;
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const bool is_known = !reports[rank].text.empty() && !reports[0].text.empty();
    if (!is_known || reports[rank].text == reports[0].text) continue;
    return absl::StrCat(waited, "calls that differ: ", progress.name_of(static_cast<int>(rank)),
                        " called ", reports[rank].text, " where ", progress.name_of(0), " called ",
                        reports[0].text);
  }
  return absl::StrCat(waited,
                      "all ranks to finish what all have begun; look for a device or a network "
                      "that hangs");
}

}  // namespace tessera::internal::nccl
