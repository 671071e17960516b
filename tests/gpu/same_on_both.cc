#include "tessera/tests/gpu/same_on_both.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/torch.h>

namespace tessera::internal::testing {

using at::Tensor;

::testing::AssertionResult same_bits(const Tensor& cpu, const Tensor& gpu) {
  if (!cpu.defined() && !gpu.defined()) return ::testing::AssertionSuccess();
  if (!cpu.defined() || !gpu.defined()) return ::testing::AssertionFailure() << "one is undefined";
  if (!gpu.is_cuda()) return ::testing::AssertionFailure() << "not on the device";
  const Tensor got = gpu.detach().cpu();
  if (cpu.dtype() != got.dtype() || cpu.sizes() != got.sizes() || cpu.strides() != gpu.strides()) {
    return ::testing::AssertionFailure()
           << cpu.toString() << cpu.sizes() << cpu.strides() << " and " << got.toString()
           << got.sizes() << gpu.strides();
  }
  const auto bytes = [](const Tensor& tensor) {
    return tensor.detach().contiguous().view(-1).view(at::kByte);
  };
  if (cpu.numel() == 0 || at::equal(bytes(cpu), bytes(got))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "largest difference " << (cpu - got).abs().max().to(at::kDouble).item<double>();
}

at::Device a_gpu() {
  const auto* const guard = c10::impl::getDeviceGuardImpl(c10::DeviceType::CUDA);
  return {at::kCUDA, static_cast<c10::DeviceIndex>(guard->deviceCount() > 1 ? 1 : 0)};
}

void expect_same(const Compute& compute) {
  torch::manual_seed(11);
  const auto cpu = compute(at::kCPU);
  torch::manual_seed(11);
  const auto gpu = compute(a_gpu());
  ASSERT_EQ(cpu.size(), gpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_TRUE(same_bits(cpu[i], gpu[i])) << "result " << i;
}

Tensor draw(at::IntArrayRef sizes, at::Device device) {
  return at::randn(sizes, at::detail::createCPUGenerator(5)).to(device);
}

}  // namespace tessera::internal::testing
