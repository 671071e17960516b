#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/core/layout/flat_layout.h"

namespace tessera {

/// The slice of one unit that this rank updates.
struct OptimizerShard {
  at::Tensor values;  ///< [slice numel], a view of the flat parameter buffer; updated in place
  std::vector<Segment> segments;  ///< `parameter` indexes the ParameterTable; `buffer_offset`
                                  ///< counts from the slice's start
};

/// One number of a parameter group: lr, eps, ...
struct HyperParameter {
  std::string group;  ///< "defaults" or the OptimizerGroup's name; unique: " #<index>" is added to
                      ///< a name that an earlier group has, and to an empty one
  std::string name;   ///< "lr", "beta1", ...
  double value = 0;
};

namespace cuda {
struct StepVerdict;
}

/// An optimizer over slices of flat buffers. It is a torch::optim::Optimizer so that learning rate
/// schedulers and code that prints or edits hyper-parameters work on it; its parameter groups list
/// the user's own parameters. The engine calls update() of HostOptimizer or DeviceOptimizer; step()
/// throws. Step counts are kept per parameter of the whole table, so they are equal on all ranks.
/// Elementwise: the bits of an element do not depend on how buffers are cut or in which order
/// shards are updated.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;

  /// Throws c10::Error: "[optim] step: call engine->step()".
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Throw c10::Error: a rank has only its share of the state, and LibTorch's defaults would write
  /// and read nothing. Engine::state_dict() has all of it by name.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// What makes the parameter groups unusable now, "[optim] <what>: got X, expected Y; <remedy>";
  /// empty if nothing. Asked before the vote, so that all ranks refuse together. Local.
  virtual std::string problem() const = 0;

  /// Bytes of moments this optimizer keeps on this rank: for AdamW twice the shards' bytes, padding
  /// included.
  virtual int64_t state_bytes() const = 0;

  /// Bit patterns of all hyper-parameters in force now, for the vote: equal on all ranks or the
  /// step is refused.
  virtual void append_hyper_parameters(std::vector<int64_t>& words) const = 0;
  /// Names for the entries of append_hyper_parameters ("group 'decay': lr"), for messages.
  virtual std::vector<std::string> hyper_parameter_names() const = 0;

  // What a StateDict holds of it. All local.

  /// What is remembered per element of a shard: "exp_avg", "exp_avg_sq". Fixed.
  virtual std::vector<std::string> state_names() const = 0;
  /// Tensor number `name` of state_names() for shard `shard`, in the constructor's order: [slice
  /// numel], the values' dtype, padding zero. The optimizer's own memory: writing it is loading.
  virtual const at::Tensor& state(size_t shard, size_t name) const = 0;

  /// Updates of each parameter of the table so far. Blocks until the device has run what is queued
  /// on its current stream, where they are counted on a device.
  virtual std::vector<int64_t> step_counts() const = 0;
  /// The other way round, when loading; one per parameter of the table.
  virtual void set_step_counts(std::span<const int64_t> counts) = 0;

  /// The numbers of all groups in force now, in a fixed order. Where problem() says that groups or
  /// their options were replaced, their values are 0.
  virtual std::vector<HyperParameter> hyper_parameters() const = 0;
  /// What forbids set_hyper_parameters(values), one line each; empty if nothing. What the groups
  /// hold now may be out of range: loading mends it.
  virtual std::vector<std::string> problems_of(std::span<const double> values) const = 0;
  /// `values` in the order of hyper_parameters(), which problems_of() accepts.
  virtual void set_hyper_parameters(std::span<const double> values) = 0;
};

/// A FlatOptimizer whose shards lie in host memory and are updated in the call.
class HostOptimizer : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

  /// Updates shard number `shard`, in the constructor's order. `gradient` is [slice numel], the
  /// values' dtype, read only. `parameters` are those (of the table) of the unit that the shard is
  /// a slice of, whether they have elements in it or not. For each that is used (used[parameter] !=
  /// 0), gradient * gradient_scale is applied to its segments and its step count rises by one.
  /// Unused ones are left alone entirely, weight decay included, as torch::optim does with
  /// undefined gradients. Local, allocates nothing.
  virtual void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
                      std::span<const uint8_t> used, double gradient_scale) = 0;
};

/// A FlatOptimizer whose shards lie in a device's memory. What the step depends on is there as well
/// (cuda::StepDecision), so the host queues updates without knowing whether they apply. Calls are
/// queued on the device's current stream of the calling thread; none waits for the device. What is
/// handed over stays alive until what is queued has run. Used by one thread at a time.
class DeviceOptimizer : public FlatOptimizer {
 public:
  using FlatOptimizer::FlatOptimizer;

  /// Begins a step: if the verdict applies, counts the step of every parameter that is used, and
  /// computes the numbers of its update from the hyper-parameters in force at the call. Unused ones
  /// are left alone entirely. Once per step, before update(). `used`: [table size] words, above 0
  /// where any rank used the parameter. Both point into the device's memory. Throws c10::Error with
  /// problem(), if there is one.
  virtual void advance(const cuda::StepVerdict* verdict, const int64_t* used) = 0;

  /// Updates shard number `shard`, in the constructor's order, by what the last advance() computed;
  /// nothing changes if it does not apply. `gradient`: [slice numel] Float, BFloat16 or Half, read
  /// only. `target`: [slice numel] Float, BFloat16 or Half, where the new values go as well,
  /// rounded to the nearest (the shard of 16-bit parameters); undefined for none.
  virtual void update(size_t shard, const at::Tensor& gradient, const at::Tensor& target) = 0;
};

}  // namespace tessera
