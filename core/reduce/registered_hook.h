#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tessera/comm_hook.h"
#include "tessera/memory_meter.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The communication hook of an engine, if it has one. Lasts while the engine is built anew for
/// other trained parameters.
class RegisteredHook {
 public:
  CommHook* hook() const { return hook_.get(); }
  /// CommHook::run().
  at::Tensor run(const GradBucket& bucket, ProcessGroup& group) const;
  /// Whether that is under way: what the hook calls of the engine would find it half way.
  bool is_running() const { return is_running_; }
  bool carries_gradients() const { return hook_ != nullptr && hook_->carries_gradients(); }

  /// Throws what the hook does to be refused; then it is not registered. Local.
  static void try_out(CommHook& hook, const ParameterTable& table, const UnitPlan& plan,
                      bool has_loss_scale);
  /// `hook`, which was tried out, has been accepted by all ranks; `meter` counts what it holds.
  void accept(std::shared_ptr<CommHook> hook, MemoryMeter& meter);
  /// Prepares the hook, if there is one, for another plan.
  void prepare(const ParameterTable& table, const UnitPlan& plan, bool has_loss_scale,
               MemoryMeter& meter);

  /// A backward has begun: too late to register one.
  void note_backward() { had_backward_ = true; }
  bool had_backward() const { return had_backward_; }

  /// CommHook::state(), under the names that it has in a state of the run.
  std::vector<CommHook::State> state() const;
  /// CommHook::before_saving(). Collective.
  void before_saving(ProcessGroup& group) {
    if (hook_ != nullptr) hook_->before_saving(group);
  }
  /// CommHook::bytes() when it was prepared.
  int64_t bytes() const { return counted_bytes_; }

 private:
  void count(MemoryMeter& meter);

  std::shared_ptr<CommHook> hook_;
  int64_t counted_bytes_ = 0;
  bool had_backward_ = false;
  mutable bool is_running_ = false;
};

}  // namespace tessera::internal
