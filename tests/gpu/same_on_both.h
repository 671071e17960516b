#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

namespace tessera::internal::testing {

/// Not the first one where there are more, so that what forgets the device is found.
at::Device a_gpu();

/// Whether `gpu` lies on a GPU and is bit for bit `cpu`, with its dtype, sizes and strides. NaNs
/// are equal, zeros of two signs are not.
::testing::AssertionResult same_bits(const at::Tensor& cpu, const at::Tensor& gpu);

/// Expects that `compute` returns the same on the CPU and on a_gpu(), from the same seed.
using Compute = std::function<std::vector<at::Tensor>(at::Device device)>;
void expect_same(const Compute& compute);

/// Normally distributed numbers that are drawn on the CPU, on `device`. The same each time.
at::Tensor draw(at::IntArrayRef sizes, at::Device device);

}  // namespace tessera::internal::testing
