#include "tessera/zero/parameters/parameter_all_gather.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/access/unobserved_scope.h"
#include "tessera/core/sched/trace_span.h"

namespace tessera::internal {

/// A unit whose values are under way. An operator of another thread may keep this object after the
/// ParameterAllGather is gone; then pin() waits for nothing.
class ParameterAllGather::Pending final : public AccessTarget, public AccessTarget::Pin {
 public:
  Pending(ParameterAllGather& all_gather, size_t unit, std::shared_ptr<Work> work)
      : unit(unit), work(std::move(work)), mutex_(all_gather.mutex_), all_gather_(all_gather) {}

  AccessTarget::Pin& pin(Use) noexcept override {
    const std::lock_guard lock(*mutex_);
    if (work != nullptr) all_gather_.complete(*this);
    return *this;
  }
  void unpin(Use) noexcept override {}

  /// Notes that the calling thread's current stream waits for the values. Returns false if that was
  /// noted before.
  bool add_waiting_stream(Device& device) {
    void* const stream = device.current_stream()->handle();
    if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) return false;
    streams_.push_back(stream);
    return true;
  }

  const size_t unit;
  std::shared_ptr<Work> work;  // null when the values have arrived or never will
  bool is_permitted = false;   // the unit is no longer forbidden: a thread or stream waits

 private:
  std::vector<void*> streams_;  // handles of the streams that wait for the values
  const std::shared_ptr<std::mutex> mutex_;
  ParameterAllGather& all_gather_;
};

// A parameter slice consists of gradient slices, and each of these of optimizer slices. The first
// all-gather, over the ranks of one gradient slice, makes that slice whole from optimizer slices.
// The second one makes the parameter slice from gradient slices.
ParameterAllGather::ParameterAllGather(ProcessGroup& group, const UnitPlan& plan,
                                       const SliceMap& slices, FlatParameters& flat, Trace* trace)
    : group_(group),
      plan_(plan),
      slices_(slices),
      flat_(flat),
      trace_(trace),
      device_(group.device().is_cpu() ? nullptr : device_at(group.device())) {
  using MapAxis = SliceMap::Axis;
  const auto add = [&](MapAxis axis, const char* name) {
    if (slices.extent(axis) == 1) return;
    Axis added{.group = &group_, .owned = nullptr, .outer = 1};
    if (slices.extent(axis) < group.size()) {
      added.owned = split(group, slices.colors({axis}), name);
      added.group = added.owned.get();
    }
    if (axis == MapAxis::kOptimizer) added.outer = slices.extent(MapAxis::kGradients);
    axes_.push_back(std::move(added));
  };
  add(MapAxis::kOptimizer, "updates inside gradient slices");
  add(MapAxis::kGradients, "updates inside parameter slices");
}

// Waits for the all-gathers under way. This cannot hang, because they complete without further
// calls of the peers. While an exception unwinds, the destructor does not wait. If the values of a
// parameter have not arrived then, or if their all-gather has failed, access to the parameter stays
// forbidden.
ParameterAllGather::~ParameterAllGather() {
  {
    const std::lock_guard lock(*mutex_);
    for (const auto& pending : pending_) {
      if (std::uncaught_exceptions() == 0) complete(*pending);
      pending->work = nullptr;
    }
  }
  observer_.reset();
}

void ParameterAllGather::start(const std::vector<size_t>& units) {
  const UnobservedScope unobserved;
  forget();
  const bool may_go_on = axes_.size() == 1 && !flat_.is_split() && group_.can().in_background;
  std::vector<AccessObserver::Watched> watched;
  for (const size_t unit : units) {
    const TraceSpan span(trace_, TraceTrack::kGather, plan_[unit].name);
    const at::Tensor& shard = flat_.shard(unit);
    std::shared_ptr<Work> work;
    for (const Axis& axis : axes_) {
      if (work != nullptr) work->wait();
      const int64_t run_numel = shard.numel() / axis.outer;
      const int64_t run = axis.outer > 1 ? slices_.coordinate(SliceMap::Axis::kGradients) : 0;
      const at::Tensor values = shard.narrow(0, run * run_numel, run_numel);
      const int64_t slice_numel = run_numel / axis.group->size();
      work = axis.group->all_gather(values,
                                    values.narrow(0, axis.group->rank() * slice_numel, slice_numel),
                                    plan_[unit].name);  // in place
    }
    if (!may_go_on || work->is_completed()) {
      work->wait();
      continue;
    }
    const std::lock_guard lock(*mutex_);
    const auto& pending =
        pending_.emplace_back(std::make_shared<Pending>(*this, unit, std::move(work)));
    for (auto& storage : flat_.watched(unit, pending)) watched.push_back(std::move(storage));
  }
  if (watched.empty()) return;
  observer_ = std::make_unique<AccessObserver>(std::move(watched));
  // Forbid access only now, after the observer was made. If access were forbidden first, an
  // operator that begins on another thread in between would throw instead of waiting.
  const std::lock_guard lock(*mutex_);
  for (const auto& pending : pending_) {
    if (pending->work == nullptr || pending->is_permitted) continue;
    flat_.full(pending->unit)
        .forbid(absl::StrCat(
            "[zero] unit '", plan_[pending->unit].name,
            "': its new values are still on their way from other ranks, so they cannot be read "
            "through ",
            kWhatIsNotSeen,
            "; use an operator on the parameters or their views, or call engine->wait()"));
  }
}

/// Lets the calling thread, or on a GPU its current stream, wait for one unit. The caller holds the
/// mutex.
void ParameterAllGather::complete(Pending& pending) {
  if (pending.work == nullptr) return;
  std::shared_ptr<Work> work = pending.work;
  if (device_ == nullptr || work->is_completed()) {
    pending.work = nullptr;
  } else if (!pending.add_waiting_stream(*device_)) {
    return;
  }
  const UnobservedScope unobserved;
  try {
    work->wait();
    if (std::exchange(pending.is_permitted, true)) return;
    flat_.accept_values(pending.unit);
    flat_.full(pending.unit).permit();
  } catch (const CommError& error) {
    pending.work = nullptr;
    if (!failure_.has_value()) failure_ = error;
    // The operator goes on and accesses the storage, which throws this error.
    flat_.full(pending.unit).forbid(error.what());
  }
}

void ParameterAllGather::finish() {
  {
    const std::lock_guard lock(*mutex_);
    for (const auto& pending : pending_) complete(*pending);
    if (failure_.has_value()) throw CommError(*failure_);
    // On a GPU other streams may still read units whose values have not arrived.
    std::erase_if(pending_, [](const auto& pending) { return pending->work == nullptr; });
    if (!pending_.empty()) return;
  }
  observer_.reset();  // not under the mutex, which the observer's targets lock
}

/// Ends what finish() has left, before the units get newer values.
void ParameterAllGather::forget() {
  {
    const std::lock_guard lock(*mutex_);
    for (const auto& pending : pending_) {
      complete(*pending);
      pending->work = nullptr;
    }
    pending_.clear();
  }
  observer_.reset();
}

}  // namespace tessera::internal
