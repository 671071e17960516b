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
  std::vector<uint8_t> used;                          ///< per state: 1 if it is kept
  std::vector<std::optional<at::ScalarType>> dtypes;  ///< per state; nullopt: the parameter's dtype
  bool takes_double = true;  ///< false: the optimizer throws if parameters are Double
};

/// Restores the CPU's default generator on destruction: gives it the state that it had when this
/// object was made, if anything has drawn from it since.
class GeneratorKeeper {
 public:
  GeneratorKeeper();
  ~GeneratorKeeper();
  GeneratorKeeper(const GeneratorKeeper&) = delete;
  GeneratorKeeper& operator=(const GeneratorKeeper&) = delete;

  bool has_drawn() const;
  /// Returns true if `run` draws from the generator. The caller must have called `run` once since
  /// construction. If nothing has drawn since then, returns false. If something has, that may have
  /// been another thread, so `run` is repeated, up to a limit. One repetition in which nothing
  /// draws shows that `run` does not draw.
  bool is_drawn_from_by(const std::function<void()>& run) const;

 private:
  at::Generator generator_;
  at::Tensor state_;
};

/// Runs the optimizer on two small parameters for three steps and returns the states that it keeps.
/// If the optimizer throws for Float parameters, StatesInUse::problem contains the text of the
/// exception; if only for Double ones, StatesInUse::takes_double is false. Local.
StatesInUse find_states(const ErasedForm& form, const torch::optim::OptimizerOptions& options);

/// Tests whether the optimizer is elementwise and its form complete, as elementwise() requires.
/// Returns "got X, expected Y; do Z" if not, else "". `states` come from find_states(), without a
/// problem. Local; leaves the CPU's default generator as it was.
std::string probe_elementwise(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                              const StatesInUse& states);

}  // namespace tessera::internal
