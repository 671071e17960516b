#include "tessera/tests/gpu/gpu_comparison.h"

#include <algorithm>

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/gpu_for_tests.h"

namespace tessera::internal::testing {
namespace {

/// The change of a parameter by one unit in its last place, relative to the parameter.
double last_place(const Outcome& outcome) {
  double largest = 0;
  for (const auto& [name, tensor] : outcome.parameters) {
    if (tensor.scalar_type() == at::kBFloat16) largest = std::max(largest, 0x1p-7);
    if (tensor.scalar_type() == at::kHalf) largest = std::max(largest, 0x1p-10);
  }
  return largest;
}

}  // namespace

std::string gpu_differences(const Outcome& gpu, const Outcome& cpu) {
  return fake_gpu() != nullptr ? bit_differences(gpu, cpu)
                               : differences(gpu, cpu, kGpuTolerance + last_place(cpu));
}

}  // namespace tessera::internal::testing
