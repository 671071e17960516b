#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/reduce/gradient_observer.h"
#include "tessera/core/reduce/reducer.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/trace.h"
#include "tessera/unit_plan.h"
#include "tessera/zero/parameters/parameter_store.h"

namespace tessera::internal {

/// Updates each unit's slice as soon as its gradient is reduced (Options::optimizer_in_backward),
/// and makes the unit unreadable until step() has made the update visible to all ranks. Note
/// [Update in backward] in update_in_backward.cc. Used by one thread.
class UpdateInBackward final : public GradientObserver {
 public:
  /// References and `trace` (may be null) must outlive it.
  UpdateInBackward(const ParameterTable& table, const UnitPlan& plan, CpuOptimizer& optimizer,
                   ParameterStore& store, Trace* trace);

  /// Called when all ranks have agreed to a backward that updates. Records the present
  /// hyper-parameters, which must not change before step() has committed the update.
  void begin();

  /// Returns true if a backward has begun that no step() has committed; then parameters may differ
  /// between ranks.
  bool has_begun() const { return has_begun_; }
  /// Throws c10::Error if has_begun(), because `call` needs parameters that are the same on all
  /// ranks.
  void require_committed(const char* call) const;

  bool consumes() const override { return true; }
  void before_consuming(size_t unit) override { protect(unit); }
  void consume(size_t unit, const at::Tensor& gradient, const ExactSum& squares) override {
    update(unit, gradient, all_used_, squares);
  }

  /// Called when the backward is over, after Reducer::end_micro_step(). Updates the units that
  /// lacked gradients on this rank, if any rank used them. Local.
  void finish(Reducer& reducer);

  /// Returns this rank's part of the squared norm of all gradients since begin().
  const ExactSum& squares() const { return squares_; }

  /// Returns why step() must be refused now; "" if it need not.
  std::string problem() const;

  /// Returns the text of the error for non-finite gradients: `report`, then what to do. After this
  /// error the engine must load a state.
  static std::string describe(const NonFiniteReport& report);

  /// Called after all ranks have agreed to the step or loaded a state. From then on parameters can
  /// be read again.
  void end();

 private:
  void protect(size_t unit);
  void update(size_t unit, const at::Tensor& gradient, const std::vector<uint8_t>& used,
              const ExactSum& squares);

  const UnitPlan& plan_;
  CpuOptimizer& optimizer_;
  ParameterStore& store_;
  Trace* const trace_;
  const std::vector<uint8_t> all_used_;    // all 1, by table index
  std::vector<int64_t> hyper_parameters_;  // recorded by begin()
  std::vector<uint8_t> is_done_;  // per unit: whether update() was called since the last end()
  ExactSum squares_;
  bool has_begun_ = false;
};

}  // namespace tessera::internal
