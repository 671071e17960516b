#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/options.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The buffers that `model` has registered, by name, without those that `ignores`
/// (Options::ignores_buffers; may be null) accepts under any name. Local.
std::vector<NamedTensor> buffers_of(const torch::nn::Module& model,
                                    const std::function<bool(std::string_view)>& ignores);

/// What ranks must have in common of their buffers, a line each: name, dtype and sizes.
std::vector<std::string> lines_of(const std::vector<NamedTensor>& buffers);

/// Compares what a model had registered when it was parallelized with what it has now: the engine
/// trains and saves only the former.
class Registration {
 public:
  /// Remembers the buffers that `model` has now; its parameters are those of `table`, and those
  /// that Options::ignores accepts under any name. References must outlive it.
  Registration(const torch::nn::Module& model, const ParameterTable& table, const Options& options);

  /// Names of trainable parameters that were added or removed since then, and what to do; "" if
  /// there are none. Added or removed frozen parameters do not affect training, nor do buffers
  /// unless steps make them equal (Options::buffers). Local; walks the model and allocates.
  std::string untrained() const;
  /// Everything that a state would lack, or have too much: frozen parameters and buffers as well.
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
