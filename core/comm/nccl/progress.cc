#include "tessera/core/comm/nccl/progress.h"

#include <utility>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/comm/groups/op_traits.h"

namespace tessera::internal::nccl {
namespace {

std::string absence(const Report& report) {
  if (report.begun < 0) return ", which does not answer";
  return absl::StrCat(report.has_left ? ", which left the group after " : ", which has begun ",
                      report.begun, " collectives");
}

/// Where two ranks' calls differ; "" if they do not.
std::string difference(const Progress& progress, const std::vector<Report>& reports) {
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    const bool is_known = !reports[rank].text.empty() && !reports[0].text.empty();
    if (!is_known || reports[rank].text == reports[0].text) continue;
    return absl::StrCat("calls that differ: ", progress.name_of(static_cast<int>(rank)), " called ",
                        reports[rank].text, " where ", progress.name_of(0), " called ",
                        reports[0].text);
  }
  return "";
}

}  // namespace

NumberedCall NumberedCall::of(const Collective& collective) {
  return {.signature = collective.signature(), .tag = std::string(collective.tag)};
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

std::string Progress::report() const {
  return absl::StrCat(has_left_ ? "left" : "in", " ", begun_.load());
}

Report Report::parse(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  Report report;
  if (parts.size() < 2 || !absl::SimpleAtoi(parts[1], &report.begun)) return {};
  report.has_left = parts[0] == "left";
  if (parts.size() == 3) report.text = parts[2];
  return report;
}

Cause explain_time_out(const Progress& progress, const NumberedCall& call, int64_t waited_ms,
                       const std::vector<Report>& reports) {
  const bool is_message = traits_of(call.signature.op).tensors == OpTraits::Tensors::kMessage;
  Cause cause{absl::StrCat("timed out: waited ", waited_ms, " ms for ")};
  std::string missing;
  for (int rank = 0; rank < static_cast<int>(reports.size()); ++rank) {
    const bool is_missing =
        is_message ? rank == call.signature.peer : reports[rank].begun <= call.sequence;
    if (!is_missing) continue;
    if (missing.empty()) cause.culprit = progress.world_ranks()[rank];
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", progress.name_of(rank),
                    absence(reports[rank]));
  }
  if (is_message) absl::StrAppend(&missing, ", in ", call.text());
  if (missing.empty()) missing = difference(progress, reports);
  if (missing.empty()) {
    missing = "all ranks to finish what all have begun; look for a device or a network that hangs";
  }
  cause.text += missing;
  return cause;
}

}  // namespace tessera::internal::nccl
