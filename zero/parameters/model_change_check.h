#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/options.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// Returns the buffers registered in `model`, by name, without those that `ignores`
/// (Options::ignores_buffers; may be null) accepts under any of their names. Local.
std::vector<NamedTensor> buffers_of(const torch::nn::Module& model,
                                    const std::function<bool(std::string_view)>& ignores);

/// Returns a line for each of `buffers` with what ranks must have in common: name, dtype and sizes.
std::vector<std::string> lines_of(const std::vector<NamedTensor>& buffers);

/// Compares what a model had registered at parallelize with what it has registered now. The engine
/// trains and saves only what was registered at parallelize.
class ModelChangeCheck {
 public:
  /// Stores the buffers that `model` has now. Does not store its parameters, because they are those
  /// of `table`, and those that Options::ignores accepts under any of their names. References must
  /// outlive it.
  ModelChangeCheck(const torch::nn::Module& model, const ParameterTable& table,
                   const Options& options);

  /// Returns a message that names trainable parameters added or removed since construction, and
  /// says what to do; "" if there are none. Also names added or removed buffers if steps make
  /// buffers equal on all ranks (Options::buffers). Names no frozen parameters, because they do not
  /// affect training. Local; walks the model and allocates.
  std::string untrained() const;
  /// Like untrained(), but names everything that a state would lack or have in excess: also frozen
  /// parameters, and buffers in any case.
  std::string unsaved() const;

 private:
  struct Changes;
  Changes changes() const;

  const torch::nn::Module& model_;
  const ParameterTable& table_;
  const std::function<bool(std::string_view)> ignores_;
  const std::function<bool(std::string_view)> ignores_buffers_;
  const bool steps_use_buffers_;
  const std::vector<NamedTensor> buffers_;
};

}  // namespace tessera::internal
