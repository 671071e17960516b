#include "tessera/examples/gpt/windows.h"

namespace gpt {

Windows::Windows(const at::Tensor& bytes, int64_t context, at::Device device)
    : windows_(bytes.unfold(0, context + 1, context)), device_(device) {}

Batch Windows::batch(const std::vector<size_t>& numbers) const {
  const std::vector<int64_t> rows(numbers.begin(), numbers.end());
  at::Tensor window = windows_.index_select(0, torch::tensor(rows, at::kLong)).to(at::kLong);
  if (!device_.is_cpu()) window = window.pin_memory().to(device_, /*non_blocking=*/true);
  const int64_t context = window.size(1) - 1;
  return {window.narrow(1, 0, context), window.narrow(1, 1, context)};
}

}  // namespace gpt
