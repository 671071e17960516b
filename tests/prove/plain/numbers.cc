#include "tessera/tests/prove/plain/numbers.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

namespace prove {
namespace {

constexpr int64_t kValues = 1 << 24;

int64_t hash(uint64_t seed, int64_t index) {
  uint64_t state = (seed << 32) + static_cast<uint64_t>(index) + 0x9e3779b97f4a7c15;
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
  return static_cast<int64_t>((state ^ (state >> 31)) >> 40);
}

at::Tensor hashes(at::IntArrayRef sizes, uint64_t seed) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  auto* data = values.data_ptr<double>();
  for (int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<double>(hash(seed, i));
  return values;
}

}  // namespace

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  return (hashes(sizes, seed) - kValues / 2) / (kValues / 2);
}

at::Tensor whole_numbers(at::IntArrayRef sizes, uint64_t seed, int64_t most) {
  return hashes(sizes, seed).remainder(2 * most + 1) - most;
}

}  // namespace prove
