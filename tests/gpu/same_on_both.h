#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace tessera::internal::testing {

/// Not the first GPU if there are several, to detect code that forgets the device.
at::Device a_gpu();

/// Returns success if `gpu` is on a GPU and has the bits, dtype, sizes and strides of `cpu`. NaNs
/// are equal; zeros of different signs are not.
::testing::AssertionResult same_bits(const at::Tensor& cpu, const at::Tensor& gpu);

/// Expects that `compute` returns the same on the CPU and on a_gpu() with the same seed.
using Compute = std::function<std::vector<at::Tensor>(at::Device device)>;
void expect_same(const Compute& compute);

/// Normally distributed numbers on `device`, drawn on the CPU. The same each time.
at::Tensor draw(at::IntArrayRef sizes, at::Device device);

}  // namespace tessera::internal::testing
