#include "tessera/tests/gpu/gpu_comparison.h"

#include "tessera/tests/support/comparison.h"
#include "tessera/tests/support/gpu_for_tests.h"

namespace tessera::internal::testing {

std::string gpu_differences(const Outcome& gpu, const Outcome& cpu) {
  return fake_gpu() != nullptr ? bit_differences(gpu, cpu) : differences(gpu, cpu, kGpuTolerance);
}

}  // namespace tessera::internal::testing
