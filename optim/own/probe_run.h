#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/optim/own/elementwise_probe.h"
#include "tessera/optimizer_form.h"

namespace tessera::internal {

/// The learning rate of each step of a probe run.
inline constexpr std::array<double, 3> kProbeRates = {0.01, 0.005, 0.02};

/// A parameter and its gradients.
struct ProbeSample {
  at::Tensor values;
  std::vector<at::Tensor> gradients;  ///< by step

  /// Returns elements [begin, begin + numel), one-dimensional, in memory of their own.
  ProbeSample cut(int64_t begin, int64_t numel) const;
  ProbeSample flat() const { return cut(0, values.numel()); }
};

/// Returns a contiguous sample of `sizes`. Uses no random generator.
ProbeSample probe_sample(at::IntArrayRef sizes, at::ScalarType dtype);
/// Returns samples of [16, 12] and [130]; the latter ends within a block of 64.
std::vector<ProbeSample> probe_samples(at::ScalarType dtype);

/// Thrown if traits do not describe what the optimizer does.
struct FormProblem {
  std::string text;  ///< "got X, expected Y; do Z"
};

/// The results of an optimizer on samples.
struct ProbeRun {
  std::vector<std::vector<at::Tensor>> values;  ///< [sample][step]: flat, after that step
  /// [sample][state]: the state after the last step; an undefined tensor if the optimizer keeps no
  /// such state for that sample.
  std::vector<std::vector<at::Tensor>> states;
};

bool have_equal_values(const ProbeRun& a, const ProbeRun& b);
/// Returns true if the states that both runs have are equal. Ignores a state that only one of them
/// has.
bool have_equal_states(const ProbeRun& a, const ProbeRun& b);

/// Calls `run_as_engine`, in which each step gets from earlier steps only what the form names.
/// Returns the problem if the call throws or its results differ from `expected`; else "".
std::string problem_of_form_in_use(const ErasedForm& form, const ProbeRun& expected,
                                   const std::function<ProbeRun()>& run_as_engine);

// Each of these functions runs one step for each of kProbeRates. They throw FormProblem, and
// whatever the optimizer throws.

/// Updates all samples by one optimizer, as a program without this library does.
ProbeRun run_whole(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples);
/// Updates each sample by an optimizer of its own.
ProbeRun run_alone(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples);
/// Cuts each sample wherever slices may end, and updates each piece by an optimizer of its own. The
/// result has no states.
ProbeRun run_cut(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                 const std::vector<ProbeSample>& samples);
/// Updates the same pieces as run_cut() by OptimizerUpdate, as an engine does.
ProbeRun run_as_engine(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                       const StatesInUse& in_use, const std::vector<ProbeSample>& samples);

// Shared by find_states() and probe_elementwise(), and by their counterparts for whole tensors.

/// Calls `look` with Float and then, unless that has found a problem, with Double. Returns what it
/// has found. If look(Float) throws, StatesInUse::problem is the text of a FormProblem, or that of
/// another exception with `remedy` added. If look(Double) throws, StatesInUse::takes_double is
/// false.
StatesInUse find_states_by(const ErasedForm& form, const char* remedy,
                           const std::function<void(at::ScalarType, StatesInUse&)>& look);
/// Returns an error if the optimizer draws random numbers, changes no value, or updates a sample
/// differently if there are other samples. Else returns what `problem_of` returns for the samples
/// and the results of run_whole(); "" if there is no problem. samples_of(dtype) makes the samples.
/// The error about random numbers ends with `draws`, the error about other samples with `others`.
std::string probe_by(
    const ErasedForm& form, const torch::optim::OptimizerOptions& options,
    const StatesInUse& states,
    const std::function<std::vector<ProbeSample>(at::ScalarType)>& samples_of,
    const std::string& draws, const std::string& others,
    const std::function<std::string(const std::vector<ProbeSample>&, const ProbeRun&)>& problem_of);

}  // namespace tessera::internal
