#include "tessera/tests/prove/plain/hinge_model.h"

#include "tessera/tests/prove/plain/initial_values.h"
#include "tessera/tests/prove/plain/numbers.h"

namespace prove {
namespace {

constexpr int64_t kMaxInput = 4;
constexpr uint64_t kHingeSeed = 2000;

}  // namespace

HingeModel::HingeModel() {
  heads_ = register_module("heads", torch::nn::ModuleList());
  for (int i = 0; i < kHeads; ++i) heads_->push_back(torch::nn::Linear(kInputs, kLabels));
  set_initial_values(*this);
}

at::Tensor HingeModel::scores(const at::Tensor& input) {
  std::vector<at::Tensor> scores;
  for (const auto& head : *heads_) {
    scores.push_back(head->as<torch::nn::Linear>()->forward(input));
  }
  return at::cat(scores, 1);
}

at::Tensor HingeModel::loss(const Batch& batch) {
  return at::relu(1 - batch.target * scores(batch.input)).sum();
}

Batch HingeModel::batch(int64_t index, int64_t rows) {
  const at::Tensor input =
      whole_numbers({rows, kInputs}, kHingeSeed + static_cast<uint64_t>(index), kMaxInput);
  const int64_t labels = kHeads * kLabels;
  const at::Tensor sum = input.narrow(1, 0, labels) + input.narrow(1, 1, labels);
  return {input, at::where(sum > 0, at::ones_like(sum), -at::ones_like(sum))};
}

double HingeModel::closest_decision(const Batch& batch) {
  const torch::NoGradGuard without_autograd;
  const at::Tensor margin = 1 - batch.target * scores(batch.input);
  at::Tensor magnitude = at::ones_like(margin);
  int64_t column = 0;
  for (const auto& head : *heads_) {
    const auto& linear = *head->as<torch::nn::Linear>();
    magnitude.narrow(1, column, kLabels) +=
        batch.input.abs().matmul(linear.weight.abs().t()) + linear.bias.abs();
    column += kLabels;
  }
  // The error of a sum of n products is at most n u times the sum of their magnitudes, in any order
  // (Higham, Accuracy and Stability, 3.1). Add the bias, the subtraction 1 - x, and both sides of
  // the comparison.
  const double per_magnitude = static_cast<double>(kInputs + 3) * 0x1p-24 * 2;
  return (margin.abs() / (magnitude * per_magnitude)).min().item<double>();
}

}  // namespace prove
