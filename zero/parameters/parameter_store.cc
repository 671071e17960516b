#include "tessera/zero/parameters/parameter_store.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include "tessera/core/device/device.h"

namespace tessera::internal {

namespace {

AllocateUnit memory_from(SharedParameters* shared, ProcessGroup& group, const UnitPlan& plan,
                         const SliceMap& slices, const ResolvedOptions& options) {
  if (shared != nullptr) return [shared](size_t unit) { return shared->memory(unit); };
  if (options.offload == Offload::kParameters) {
    return own_memory(plan, slices, options.residence,
                      [device = device_at(group.device())](int64_t numel, at::ScalarType dtype) {
                        return device->allocate_on_host(numel, dtype);
                      });
  }
  return own_memory(plan, slices, options.residence, [&group](int64_t numel, at::ScalarType dtype) {
    return group.allocate(numel, dtype);
  });
}

/// Returns true if a step all-gathers the updates, because each rank updates only a part of the
/// parameters that it keeps.
bool gathers_updates(const SharedParameters* shared, const SliceMap& slices) {
  return shared == nullptr && slices.degrees().optimizer > slices.degrees().parameters;
}

}  // namespace

ParameterStore::ParameterStore(ProcessGroup& group, const ParameterTable& table,
                               const UnitPlan& plan, const SliceMap& slices,
                               const ResolvedOptions& options,
                               std::function<bool()> is_inside_backward, StreamJoin* streams,
                               MemoryMeter& meter, Trace* trace, Values brought)
    : group_(group),
      table_(table),
      plan_(plan),
      masters_(table, plan, slices, group.device(), meter, options.offload, brought),
      shared_(options.share_parameters ? SharedParameters::make(group, plan, slices) : nullptr),
      gathering_(options.residence == Residence::kSplit && shared_ == nullptr &&
                         !group.can().one_sided_reads
                     ? make_gathering_group(group, slices)
                     : nullptr),
      flat_(table, plan, options.residence,
            memory_from(shared_.get(), gathering_ != nullptr ? *gathering_ : group, plan, slices,
                        options),
            group.device(), meter, brought,
            gathers_updates(shared_.get(), slices) ? Observed::kYes : Observed::kNo) {
  masters_.adopt(flat_);
  if (gathers_updates(shared_.get(), slices)) {
    all_gather_ = std::make_unique<ParameterAllGather>(group, plan, slices, flat_, trace);
  }
  if (flat_.is_split()) {
    gathered_ = GatheredUnits::make({.group = group,
                                     .gathering = gathering_,
                                     .plan = plan,
                                     .table = table,
                                     .slices = slices,
                                     .flat = flat_,
                                     .meter = meter,
                                     .trace = trace},
                                    {.ranks_after_forward = options.reshard_after_forward,
                                     .prefetch = options.prefetch,
                                     .free_eagerly = options.free_eagerly,
                                     .fixed_unsharded_buffers = options.fixed_unsharded_buffers,
                                     .poison_freed = options.poison_freed,
                                     .is_inside_backward = std::move(is_inside_backward),
                                     .streams = streams});
  }
  if (reads_of_others()) group_.barrier("parameters moved");
  flat_.accept();
}

/// Returns true if this rank reads memory of other ranks directly, not by a collective.
bool ParameterStore::reads_of_others() const {
  return is_shared() || (gathered_ != nullptr && group_.can().one_sided_reads);
}

FlatParameters::Finding ParameterStore::inspect() const {
  const FlatParameters::Finding finding = flat_.inspect();
  if (finding.violation != FlatParameters::Violation::kNone) return finding;
  std::optional<size_t> written;
  if (is_shared()) written = shared_->find_written();
  if (!written.has_value() && gathered_ != nullptr) written = gathered_->written();
  if (!written.has_value()) return {};
  return {FlatParameters::Violation::kWritten, *written};
}

void ParameterStore::finish() {
  if (all_gather_ != nullptr) all_gather_->finish();
  if (const std::optional<CommError> failure = failed_gather()) throw CommError(*failure);
}

std::optional<CommError> ParameterStore::failed_gather() const {
  return gathered_ == nullptr ? std::nullopt : gathered_->failure();
}

void ParameterStore::free_all() {
  if (gathered_ != nullptr) gathered_->free_all();
}

void ParameterStore::begin_writing() {
  masters_.await();
  if (gathered_ != nullptr) gathered_->await_copies();
}

void ParameterStore::show_updates(const std::vector<uint8_t>& used) {
  masters_.join();
  std::vector<size_t> updated;
  for (size_t unit = 0; unit < plan_.trainable_size(); ++unit) {
    if (plan_.is_used(unit, used)) updated.push_back(unit);
  }
  if (all_gather_ != nullptr) all_gather_->start(updated);
  make_visible();
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i] != 0) flat_.bump_version(i);
  }
  flat_.accept();
}

void ParameterStore::announce() {
  masters_.load_copies(flat_);
  if (is_shared()) shared_->drop_own_writes();
  make_visible();
  for (size_t i = 0; i < table_.size(); ++i) flat_.bump_version(i);
  flat_.accept();
}

/// Lets all ranks see the new values of the shards.
void ParameterStore::make_visible() {
  if (reads_of_others()) group_.barrier("parameters updated");
  // Called after the barrier: what operators gathered before it may be old or new values, and must
  // not be used again.
  if (gathered_ != nullptr) gathered_->values_changed();
}

std::shared_ptr<void> ParameterStore::hold_all(GatheredUnits::HoldMode mode) {
  finish();
  return gathered_ == nullptr ? nullptr : gathered_->hold_all(mode);
}

std::shared_ptr<void> ParameterStore::hold(const std::vector<size_t>& units) {
  finish();
  return gathered_ == nullptr ? nullptr
                              : gathered_->hold(units, GatheredUnits::HoldMode::kReadOnly);
}

std::vector<at::Tensor> ParameterStore::wholes() const {
  std::vector<at::Tensor> wholes;
  for (size_t unit = 0; unit < plan_.size(); ++unit) wholes.push_back(flat_.full(unit).memory());
  return wholes;
}

void ParameterStore::take_wholes() {
  const at::NoGradGuard no_grad;
  for (size_t unit = 0; unit < plan_.size(); ++unit) {
    const at::Tensor& whole = flat_.full(unit).memory();
    const Range range = flat_.shard_range(unit);
    if (!whole.is_same(flat_.shard(unit))) {
      flat_.shard(unit).copy_(whole.narrow(0, range.begin, range.numel));
    }
    if (unit < plan_.trainable_size()) masters_.load(unit, flat_);
  }
}

}  // namespace tessera::internal
