#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The buffers that `model` has registered, by name. Local.
std::vector<NamedTensor> buffers_of(const torch::nn::Module& model);

/// What ranks must have in common of their buffers, a line each: name, dtype and sizes.
std::vector<std::string> lines_of(const std::vector<NamedTensor>& buffers);

/// Compares what a model had registered when it was parallelized with what it has now: the engine
/// trains and saves only the former.
class Registration {
 public:
  /// Remembers the buffers that `model` has now; its parameters are those of `table`, and those
  /// that `ignores` (Options::ignores; may be null) accepts under any name. References must outlive
  /// it.
  Registration(const torch::nn::Module& model, const ParameterTable& table,
               std::function<bool(std::string_view)> ignores);

  /// Names of trainable parameters that were added or removed since then, and what to do; "" if
  /// there are none. Added or removed frozen parameters and buffers do not affect training. Local;
  /// walks the model and allocates.
  std::string untrained() const;
  /// Everything that a state would lack, or have too much: frozen parameters and buffers as well.
  std::string unsaved() const;

 private:
  struct Changes;
  Changes changes() const;

  const torch::nn::Module& model_;
  const ParameterTable& table_;
  const std::function<bool(std::string_view)> ignores_;
  const std::vector<NamedTensor> buffers_;
};

}  // namespace tessera::internal
