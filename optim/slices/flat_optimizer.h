#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/core/device/device.h"
#include "tessera/flat_layout.h"
#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optim/plan/parameter_groups.h"
#include "tessera/optim/plan/refusing_optimizer.h"
#include "tessera/optim/slices/optimizer_shard.h"
#include "tessera/optim/slices/whole_tensors.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

namespace cuda {
struct Api;
struct StepOutcome;
}  // namespace cuda

/// An optimizer over slices of flat buffers. It is a torch::optim::Optimizer so that learning rate
/// schedulers and code that prints or edits hyper-parameters work on it; its parameter groups list
/// the user's own parameters, and may be handed to another optimizer (ParameterGroups::show_in()).
/// The engine calls update() of CpuOptimizer or GpuOptimizer; step() throws. Step counts are kept
/// per parameter of the whole table, so they are equal on all ranks. The bits of an element do not
/// depend on how buffers are cut or in which order shards are updated.
class FlatOptimizer : public RefusingOptimizer {
 public:
  /// Makes the plan's groups. `group_of` is the result of OptimizerPlan::assign(). Throws
  /// c10::Error with groups().problem(), if there is one.
  FlatOptimizer(const ParameterTable& table, const OptimizerPlan& plan,
                const std::vector<size_t>& group_of);

  /// Returns the states that are kept: for each group, the states of its algorithm that the group's
  /// options use.
  const std::vector<KeptState>& states() const { return groups_.states(); }
  /// Returns the parameter groups, with the hyper-parameters that engines check, compare, save and
  /// load.
  const ParameterGroups& groups() const { return groups_; }
  ParameterGroups& groups() { return groups_; }

  /// Returns how many bytes of states() this optimizer keeps on this rank, padding included.
  virtual int64_t state_bytes() const = 0;

  // State that a StateDict holds. All local.

  /// Returns the tensor that holds state number `state` of states() for shard number `shard`, where
  /// shards are numbered in the constructor's order. The tensor is flat. It has a value for each
  /// block of elements whose parameter has the state, in the order of PartialStateLayout: [slice
  /// numel] if all parameters have the state and a block is one element. Padding is zero. The
  /// tensor is the optimizer's own memory.
  virtual const at::Tensor& state(size_t shard, size_t state) const = 0;
  /// Returns the part of state(shard, state) for one of the shard's segments, whose parameter must
  /// have the state: [ElementState::values_of(segment numel)], a view. Loading writes to it.
  virtual at::Tensor state_of(size_t shard, const Segment& segment, size_t state) const = 0;
  /// Returns the value of the state's elements before the first update of `parameter`, which has
  /// the state.
  double initial_state(size_t parameter, size_t state) const;

  /// Returns the object that lists the states kept whole by owners (WholeTensors::states()); null
  /// means that there are no such states.
  virtual const WholeTensors* whole_states() const { return nullptr; }

  /// Returns the number of updates so far of each parameter of the table. If they are counted on a
  /// device, blocks until it has run the work queued on its current stream.
  virtual std::vector<int64_t> step_counts() const = 0;
  /// Sets the counts when loading; one per parameter of the table.
  virtual void set_step_counts(std::span<const int64_t> counts) = 0;

 private:
  ParameterGroups groups_;
};

/// A FlatOptimizer whose shards lie in host memory and are updated in the call.
class CpuOptimizer : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

  /// Updates shard number `shard`, in the constructor's order. `gradient` is [slice numel], the
  /// values' dtype, read only. `parameters` are the table's indices of all parameters of the
  /// shard's unit, whether they have elements in the shard or not. For each parameter that is used
  /// (used[parameter] != 0), gradient * gradient_scale is applied to its segments, and its step
  /// count rises by one if its algorithm counts the update (ElementUpdate::is_counted()). Unused
  /// parameters are left alone entirely, weight decay included, as torch::optim does with undefined
  /// gradients. Local, allocates nothing.
  ///
  /// A parameter that whole_tensors() has is updated completely if whole_tensors() works alone.
  /// Otherwise this only updates its states and writes its direction.
  virtual void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
                      std::span<const uint8_t> used, double gradient_scale) = 0;

  /// Returns the object that does the rest for parameters whose algorithm treats them as a whole;
  /// null if all algorithms are elementwise. The object must be told where directions lie before
  /// the first update().
  virtual WholeTensors* whole_tensors() { return nullptr; }
};

/// A FlatOptimizer whose shards lie in a device's memory. The decision on a step is in the device's
/// memory, too (cuda::StepDecision), so the host queues updates without knowing whether they apply.
/// Calls are queued on the device's current stream of the calling thread; none waits for the
/// device. Arguments must stay alive until the queued work has run. Used by one thread at a time.
class GpuOptimizer : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

  /// Begins a step. Call it once per step, before update(). If `outcome` says that the step is
  /// applied, computes the numbers of every used parameter's update from the hyper-parameters in
  /// force at the call, and increments the parameter's step count if its algorithm counts the
  /// update. Unused parameters are left alone entirely. `used`: [table size] words, above 0 if any
  /// rank used the parameter. `outcome` and `used` point into the device's memory. Throws
  /// c10::Error with groups().problem(), if there is one.
  virtual void advance(const cuda::StepOutcome* outcome, const int64_t* used) = 0;

  /// Updates shard number `shard`, in the constructor's order, by what the last advance() computed;
  /// nothing changes if the step does not apply. `gradient`: [slice numel] Float, BFloat16 or Half,
  /// read only. `target`: [slice numel] Float, BFloat16 or Half; gets a second copy of the new
  /// values, rounded to nearest. If parameters have 16 bits, it is their shard. An undefined
  /// `target` means that there is no second copy.
  virtual void update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) = 0;
};

/// Local. Makes an optimizer for shards in host memory, by the algorithms of the plan. `allocate`
/// makes the memory of states, by default allocate_private(). `shards` may be empty or hold slices
/// without segments (a rank that owns only padding). Throws c10::Error for a plan that assign()
/// refuses and shards that do not fit.
std::unique_ptr<CpuOptimizer> make_cpu_optimizer(const ParameterTable& table,
                                                 const OptimizerPlan& plan,
                                                 const std::vector<size_t>& group_of,
                                                 std::vector<OptimizerShard> shards,
                                                 const AllocateState& allocate = {});

/// Returns the name of the plan's first algorithm that has no kernels for devices; "" if all have.
std::string without_kernels(const OptimizerPlan& plan);

/// Like make_cpu_optimizer(), but values (Float), gradients and states are in the memory of
/// `device`, and the kernels of libtessera_cuda.so do the work. Requires that without_kernels() is
/// "". Blocks until the states' first values are on the device.
///
/// Elements get the bits of the CPU with one exception: beta^step of AdamW and Adam comes from
/// power_of() on the GPU and from std::pow on the CPU; these may differ in the last bit of a
/// double. Elements use only lr / (1 - beta1^step) and sqrt(1 - beta2^step), rounded to fp32. For
/// usual betas, GPU and CPU get the same bits for both of these (tests compare 50,000 steps).
std::unique_ptr<GpuOptimizer> make_gpu_optimizer(const ParameterTable& table,
                                                 const OptimizerPlan& plan,
                                                 const std::vector<size_t>& group_of,
                                                 std::vector<OptimizerShard> shards,
                                                 std::shared_ptr<const cuda::Api> api,
                                                 std::shared_ptr<Device> device);

}  // namespace tessera::internal
