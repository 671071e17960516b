#include "tessera/zero/parameters/shared_parameters.h"

#include <algorithm>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/error_text.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

/// Makes a buffer for the ranks of `sharers`, while the other ranks of `group` make buffers for
/// their own sharers. All ranks of `group` must agree on whether they share, so if any sharers have
/// no common memory, returns null on all ranks of `group`. If any sharers lack the space, throws on
/// all ranks of `group`.
std::unique_ptr<SharedBuffer> make_everywhere(ProcessGroup& group, ProcessGroup& sharers,
                                              int64_t bytes) {
  std::unique_ptr<SharedBuffer> buffer;
  std::string problem;
  try {
    buffer = sharers.make_shared_buffer(bytes, "parameters");
  } catch (const c10::Error& error) {
    problem = error_text(error);
  }
  refuse_on_all_ranks(group, problem, "shared parameters");
  for (const std::string& without :
       group.all_gather_bytes(buffer == nullptr ? "none" : "", "shared parameters")) {
    if (!without.empty()) return nullptr;
  }
  return buffer;
}

}  // namespace

std::unique_ptr<SharedParameters> SharedParameters::make(ProcessGroup& group, const UnitPlan& plan,
                                                         const SliceMap& slices) {
  using Axis = SliceMap::Axis;
  const Degrees& degrees = slices.degrees();
  if (!can_share_parameters(degrees)) return nullptr;

  std::vector<int64_t> offsets_bytes;
  int64_t bytes = 0;
  for (const PlannedUnit& unit : plan) {
    offsets_bytes.push_back(bytes);
    bytes += unit.layout.bytes();
  }
  std::shared_ptr<ProcessGroup> sharers;
  if (degrees.optimizer < group.size()) {
    sharers = split(group, slices.colors({Axis::kParameters, Axis::kGradients, Axis::kOptimizer}),
                    "shared parameters");
  }
  auto buffer = sharers == nullptr ? group.make_shared_buffer(bytes, "parameters")
                                   : make_everywhere(group, *sharers, bytes);
  if (buffer == nullptr) return nullptr;
  return std::unique_ptr<SharedParameters>(
      new SharedParameters(plan, slices, std::move(offsets_bytes), std::move(buffer)));
}

SharedParameters::SharedParameters(const UnitPlan& plan, const SliceMap& slices,
                                   std::vector<int64_t> offsets_bytes,
                                   std::unique_ptr<SharedBuffer> buffer)
    : plan_(plan),
      slices_(slices),
      offsets_bytes_(std::move(offsets_bytes)),
      buffer_(std::move(buffer)) {}

UnitMemory SharedParameters::memory(size_t unit) {
  const FlatLayout& layout = plan_[unit].layout;
  const Range kept = slices_.optimizer(layout);
  const auto item = static_cast<int64_t>(c10::elementSize(layout.dtype()));
  const int64_t begin_bytes = offsets_bytes_[unit];
  return {.shard_range = kept,
          .shard = buffer_->common(begin_bytes + kept.begin * item, kept.numel, layout.dtype()),
          .whole = buffer_->view(begin_bytes, layout.numel(), layout.dtype())};
}

std::optional<size_t> SharedParameters::find_written() {
  const std::optional<int64_t> byte = buffer_->find_own_write();
  if (!byte.has_value()) return std::nullopt;
  const auto after = std::upper_bound(offsets_bytes_.begin(), offsets_bytes_.end(), *byte);
  const PlannedUnit& unit = plan_[after - offsets_bytes_.begin() - 1];
  const int64_t element =
      (*byte - *std::prev(after)) / static_cast<int64_t>(c10::elementSize(unit.layout.dtype()));
  for (size_t position = 0; position < unit.parameters.size(); ++position) {
    if (element < unit.layout.parameter_range(position).end()) return unit.parameters[position];
  }
  return unit.parameters.empty() ? std::nullopt : std::optional(unit.parameters.back());
}

}  // namespace tessera::internal
