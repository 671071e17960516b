#include "tessera/examples/gpt/evaluation.h"

#include <algorithm>
#include <vector>

namespace gpt {

double held_out_loss(Gpt& model, const Windows& held_out, const EvaluationSize& size,
                     tessera::ProcessGroup& world) {
  const torch::NoGradGuard no_grad;
  const int64_t sequences =
      size.sequences == 0 ? held_out.size() : std::min(size.sequences, held_out.size());
  const auto judge = [&](const std::vector<size_t>& numbers) {
    const Batch batch = held_out.batch(numbers);
    return model.loss(batch.text, batch.target).item<double>() *
           static_cast<double>(numbers.size());
  };

  at::Tensor sum = at::zeros({2}, at::kDouble);  // loss, windows
  std::vector<size_t> numbers;
  for (int64_t i = world.rank(); i < sequences; i += world.size()) {
    numbers.push_back(static_cast<size_t>(i * held_out.size() / sequences));
    if (static_cast<int64_t>(numbers.size()) == size.batch || i + world.size() >= sequences) {
      sum[0] += judge(numbers);
      sum[1] += static_cast<double>(numbers.size());
      numbers.clear();
    }
  }
  world.all_reduce(sum, tessera::ReduceOp::kSum, "held-out loss")->wait();
  return (sum[0] / sum[1]).item<double>();
}

}  // namespace gpt
