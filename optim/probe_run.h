#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/elementwise.h"
#include "tessera/optim/elementwise_probe.h"

namespace tessera::internal {

/// The learning rate of each step of a run.
inline constexpr std::array<double, 3> kProbeRates = {0.01, 0.005, 0.02};

/// A parameter and its gradients.
struct ProbeSample {
  at::Tensor values;
  std::vector<at::Tensor> gradients;  ///< by step

  /// Elements [begin, begin + numel), one-dimensional, in memory of their own.
  ProbeSample cut(int64_t begin, int64_t numel) const;
  ProbeSample flat() const { return cut(0, values.numel()); }
};

/// Of two dimensions, [16, 12], and of one, [130], which ends within a block of 64. Contiguous;
/// drawn from no generator.
std::vector<ProbeSample> probe_samples(at::ScalarType dtype);

/// An ElementwiseTraits does not say what the optimizer does.
struct FormProblem {
  std::string text;  ///< "got X, expected Y; do Z"
};

/// What an optimizer made of samples.
struct ProbeRun {
  std::vector<std::vector<at::Tensor>> values;  ///< [sample][step], flat
  std::vector<std::vector<at::Tensor>> states;  ///< [sample][state] at the end; undefined: none
};

// Runs of one step for each of kProbeRates. They throw FormProblem, and what the optimizer does.

/// All samples in one optimizer, as a program without this library has them.
ProbeRun run_whole(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples);
/// Each sample in an optimizer of its own.
ProbeRun run_alone(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples);
/// Each sample cut wherever slices may end, each piece in an optimizer of its own. Without states.
ProbeRun run_cut(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                 const std::vector<ProbeSample>& samples);
/// The same pieces by OptimizerUpdate, as an engine does.
ProbeRun run_as_engine(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                       const StatesInUse& in_use, const std::vector<ProbeSample>& samples);

}  // namespace tessera::internal
