#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm_hook.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The communication hook of an engine, if any. It is kept when the engine is rebuilt for other
/// trained parameters.
class RegisteredHook {
 public:
  CommHook* hook() const { return hook_.get(); }
  /// Calls CommHook::run().
  at::Tensor run(const GradBucket& bucket, ProcessGroup& group) const;
  /// Returns true if run() is under way; then the hook may not call the engine.
  bool is_running() const { return is_running_; }
  bool carries_gradients() const { return hook_ != nullptr && hook_->carries_gradients(); }

  /// Prepares `hook`; throws if the hook refuses, and then the caller must not register it. Local.
  static void try_out(CommHook& hook, const ParameterTable& table, const UnitPlan& plan,
                      bool has_loss_scale);
  /// Registers `hook`, which all ranks have accepted after try_out(); `meter` counts its memory.
  void accept(std::shared_ptr<CommHook> hook, MemoryMeter& meter);
  /// Prepares the hook, if there is one, for another plan.
  void prepare(const ParameterTable& table, const UnitPlan& plan, bool has_loss_scale,
               MemoryMeter& meter);

  /// Notes that a backward has begun; from then on no hook can be registered.
  void note_backward() { had_backward_ = true; }
  bool had_backward() const { return had_backward_; }

  /// Returns CommHook::state(), with the names that a StateDict uses ("comm_hook.<hook>.<name>").
  std::vector<CommHook::State> state() const;
  /// Calls CommHook::before_saving(). Collective.
  void before_saving(ProcessGroup& group) {
    if (hook_ != nullptr) hook_->before_saving(group);
  }
  /// Returns CommHook::bytes() as of the last preparation.
  int64_t bytes() const { return counted_bytes_; }

 private:
  void count(MemoryMeter& meter);

  std::shared_ptr<CommHook> hook_;
  int64_t counted_bytes_ = 0;
  bool had_backward_ = false;
  mutable bool is_running_ = false;
};

}  // namespace tessera::internal
