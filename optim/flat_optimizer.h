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

/// An optimizer over slices of flat buffers. It is a torch::optim::Optimizer so that learning rate
/// schedulers and code that prints or edits hyper-parameters work on it; its parameter groups list
/// the user's own parameters. The engine calls update(); step() throws.
class FlatOptimizer : public torch::optim::Optimizer {
 public:
  using torch::optim::Optimizer::Optimizer;

  /// Throws c10::Error: "[optim] step: call engine->step()".
  torch::Tensor step(LossClosure closure = nullptr) override;

  /// Throw c10::Error: torch::save and torch::load of a sharded optimizer are not available yet,
  /// and LibTorch's defaults would write and read nothing.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

  /// One update. `gradients` holds one 1-d tensor per shard, in the constructor's order: [slice
  /// numel], the values' dtype, read only. For each segment whose parameter is used
  /// (used[parameter] != 0), gradient * gradient_scale is applied and the parameter's step count
  /// rises by one. Segments of unused parameters are left alone entirely, weight decay included, as
  /// torch::optim does with undefined gradients. Elementwise: the bits of an element do not depend
  /// on how buffers are cut. Step counts are kept per parameter of the whole table, so they are
  /// equal on all ranks. Local, allocates nothing after the first call.
  virtual void update(std::span<const at::Tensor> gradients, std::span<const uint8_t> used,
                      double gradient_scale) = 0;

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
};

}  // namespace tessera
