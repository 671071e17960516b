#include "tessera/examples/gpt/evaluation.h"

#include <algorithm>
#include <vector>

namespace gpt {

double held_out_loss(Gpt& model, const Windows& held_out, const EvaluationSize& size,
                     tessera::ProcessGroup& world) {
  const torch::NoGradGuard no_grad;
  const int64_t sequences =
      size.sequences == 0 ? held_out.size() : std::min(size.sequences, held_out.size());
  at::Tensor sum = at::zeros({2}, at::kDouble);  // loss, windows
  // Where gathering is collective, all ranks must run the model equally often: a rank without
  // windows runs the first one and does not count it.
  const int64_t stride = world.size() * size.batch;
  for (int64_t begin = 0; begin < sequences; begin += stride) {
    std::vector<size_t> numbers;
    for (int64_t i = begin + world.rank(); i < std::min(begin + stride, sequences);
         i += world.size()) {
      numbers.push_back(static_cast<size_t>(i * held_out.size() / sequences));
    }
    const auto count = static_cast<double>(numbers.size());
    if (numbers.empty()) numbers.push_back(0);
    const Batch batch = held_out.batch(numbers);
    const double loss = model.loss(batch.text, batch.target).item<double>();
    if (count == 0.0) continue;
    sum[0] += loss * count;
    sum[1] += count;
  }
  const at::Tensor all = sum.to(world.device());
  world.all_reduce(all, tessera::ReduceOp::kSum, "held-out loss")->wait();
  return (all[0] / all[1]).item<double>();
}

}  // namespace gpt
