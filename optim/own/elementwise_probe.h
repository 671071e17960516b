#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <torch/optim/optimizer.h>

#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// Which of a form's states an optimizer keeps under some options.
struct StatesInUse {
  /// What is wrong with the optimizer or its states, "got X, expected Y; do Z"; "" if nothing. If
  /// there is a problem, the other fields mean nothing.
  std::string problem;
  std::vector<uint8_t> used;                          ///< by state
  std::vector<std::optional<at::ScalarType>> dtypes;  ///< nullopt: the parameter's dtype
  bool takes_double = true;  ///< false: it throws where parameters are Double
};

/// Restores the CPU's default generator if anything has drawn from it.
class GeneratorKeeper {
 public:
  GeneratorKeeper();
  ~GeneratorKeeper();
  GeneratorKeeper(const GeneratorKeeper&) = delete;
  GeneratorKeeper& operator=(const GeneratorKeeper&) = delete;

  bool has_drawn() const;
  /// Returns true if `run`, which has run since this was made, draws from the generator. If
  /// anything has drawn, repeats `run`, up to a limit, until nothing draws, because other threads
  /// may draw, too.
  bool is_drawn_from_by(const std::function<void()>& run) const;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

/// Runs the optimizer on two small parameters for three steps. Local. Does not throw what the
/// optimizer throws.
StatesInUse find_states(const ErasedForm& form, const torch::optim::OptimizerOptions& options);

/// Tests whether the optimizer is elementwise and its form complete, as elementwise() requires.
/// Returns "got X, expected Y; do Z" if not, else "". `states` come from find_states(), without a
/// problem. Local; leaves the CPU's default generator as it was.
std::string probe_elementwise(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                              const StatesInUse& states);

}  // namespace tessera::internal
