#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/memory/memory_meter.h"
#include "tessera/core/strategy.h"

namespace torch::optim {
class Optimizer;
}  // namespace torch::optim

namespace tessera {

class ProcessGroup;

/// What one step did. Equal on all ranks.
struct StepResult {
  bool committed = false;  ///< the update was applied
  int64_t step = 0;        ///< number of updates applied so far, this one included
  double grad_norm = 0.0;  ///< global 2-norm of the averaged gradient before clipping
  int64_t used_parameters =
      0;  ///< trainable parameters that had a gradient on any rank and were updated
};

/// Trains one model on the ranks of a process group. Made by parallelize() (zero/parallelize.h).
/// The loop is the user's own: forward, loss.backward(), engine->step(). Gradients are the mean
/// over ranks and the sum over backwards since the last step.
///
/// Collective calls are made by every rank in the same order: backward outside no_sync() (its
/// reductions), step(), modify_parameters(), full_parameters(), parameter_hash(). An engine belongs
/// to the thread that made it; backward runs on that thread. Several engines may live in one
/// process (a GAN), each used in the same order on all ranks.
///
/// Errors: wrong use throws c10::Error; a failed collective throws CommError and poisons the
/// engine. A non-finite gradient makes step() throw c10::Error on all ranks with nothing applied;
/// zero_grad() then lets training go on.
///
/// Destroying an engine is local: its hooks are removed and the parameters stay whole in memory of
/// their own.
class Engine {
 public:
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Collective. Finishes reductions, agrees with all ranks to commit, clips, updates, publishes
  /// new parameters and clears the gradients. Throws c10::Error without a backward since the last
  /// step, when ranks disagree, on non-finite gradients, and when a parameter was written or
  /// re-assigned outside modify_parameters().
  virtual StepResult step() = 0;

  /// For learning rate schedulers and for reading or changing hyper-parameters (on all ranks
  /// alike). Its step() throws; its zero_grad() acts as this engine's at the next backward or step.
  virtual torch::optim::Optimizer& optimizer() = 0;

  /// Local; made by all ranks alike. Drops the gradients of this step, reduced and landed.
  virtual void zero_grad() = 0;

  /// While the returned scope lives, backward adds gradients locally (full-size memory) and sends
  /// nothing; the first backward outside it reduces the local sum. Local. Scopes nest.
  class NoSync {
   public:
    /// `depth` counts the scopes alive; it may outlive the engine in one.
    explicit NoSync(std::shared_ptr<int> depth) : depth_(std::move(depth)) { ++*depth_; }
    NoSync(NoSync&& other) noexcept = default;
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    NoSync& operator=(NoSync&&) = delete;
    ~NoSync() {
      if (depth_ != nullptr) --*depth_;
    }

   private:
    std::shared_ptr<int> depth_;
  };
  [[nodiscard]] virtual NoSync no_sync() = 0;

  /// Collective. Runs `write` on every rank without autograd, then gives all ranks the parameters
  /// of rank `from_rank`. The only way to write parameters outside step(): initialisation after
  /// parallelize, weight clipping, loading. `write` may be empty except on from_rank.
  virtual void modify_parameters(int from_rank, const std::function<void()>& write) = 0;

  /// Collective. While the returned scope lives, every parameter is whole on every rank and may be
  /// read by any means (saving, raw pointers). step() inside it is an error. Costs nothing where
  /// parameters are never split.
  using FullParameters = std::shared_ptr<void>;
  [[nodiscard]] virtual FullParameters full_parameters() = 0;

  /// Collective. A hash over the names and values of all parameters in registration order and
  /// logical element order; equal values give equal hashes whatever the strategy and world size.
  /// Throws c10::Error naming the first rank that differs from rank 0.
  virtual uint64_t parameter_hash() = 0;

  virtual Strategy strategy() const = 0;
  virtual const ParameterTable& parameters() const = 0;
  virtual ProcessGroup& group() = 0;

  /// Memory this engine holds on this rank, by class. Local.
  virtual const MemoryMeter& memory() const = 0;
  /// What memory_formula says this engine holds persistently, for `micro_steps` backwards per step.
  /// Local.
  virtual MemoryBytes predicted_memory(int micro_steps) const = 0;

 protected:
  Engine() = default;
};

}  // namespace tessera
