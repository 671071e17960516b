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

/// An optimizer over slices of flat buffers. It is a torch::optim::Optimizer so that learning rate
/// schedulers and code that prints or edits hyper-parameters work on it; its parameter groups list
/// the user's own parameters. The engine calls update(); step() throws.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;

  /// Throws c10::Error: "[optim] step: call engine->step()".
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Throw c10::Error: a rank has only its share of the state, and LibTorch's defaults would write
  /// and read nothing. Engine::state_dict() has all of it by name.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// Updates shard number `shard`, in the constructor's order. `gradient` is [slice numel], the
  /// values' dtype, read only. `parameters` are those (of the table) of the unit that the shard is
  /// a slice of, whether they have elements in it or not. For each that is used (used[parameter] !=
  /// 0), gradient * gradient_scale is applied to its segments and its step count rises by one.
  /// Unused ones are left alone entirely, weight decay included, as torch::optim does with
  /// undefined gradients. Elementwise: the bits of an element do not depend on how buffers are cut
  /// or in which order shards are updated. Step counts are kept per parameter of the whole table,
  /// so they are equal on all ranks. Local, allocates nothing.
  virtual void update(size_t shard, const at::Tensor& gradient, std::span<const size_t> parameters,
                      std::span<const uint8_t> used, double gradient_scale) = 0;

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

  /// Updates of parameter `parameter` of the table so far; written when loading.
  virtual int64_t& step_count(size_t parameter) = 0;

  /// The numbers of all groups in force now, in a fixed order. Where problem() says that groups or
  /// their options were replaced, their values are 0.
  virtual std::vector<HyperParameter> hyper_parameters() const = 0;
  /// What forbids set_hyper_parameters(values), one line each; empty if nothing. What the groups
  /// hold now may be out of range: loading mends it.
  virtual std::vector<std::string> problems_of(std::span<const double> values) const = 0;
  /// `values` in the order of hyper_parameters(), which problems_of() accepts.
  virtual void set_hyper_parameters(std::span<const double> values) = 0;
};

}  // namespace tessera
