#include "tessera/tests/support/gpu_for_tests.h"

#include <dlfcn.h>

#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tessera/core/device/cuda_library.h"

namespace tessera::internal::testing {
namespace {

bool is_real() {
  const char* text = std::getenv("TESSERA_TEST_GPU");
  return text != nullptr && std::string(text) == "1";
}

}  // namespace

void load_gpu_for_tests() {
  if (!is_real()) {
    ::setenv("TESSERA_CUDA_LIBRARIES", FAKE_CUDA_FOLDER, 1);
    ::setenv("TESSERA_CUDA_MODULE", FAKE_KERNELS_PATH, 1);
    ::setenv("TESSERA_CUDA_GRAPH_MODULE", FAKE_CUDA_GRAPH_PATH, 1);
    ::setenv("TESSERA_NCCL", FAKE_NCCL_PATH, 1);
    ::setenv("FAKE_CUDA_DEVICES", "8", 0);
  }
  const auto library = load_cuda_library();
  if (!library.ok()) throw std::runtime_error(std::string(library.status().message()));
}

FakeCuda* fake_gpu() {
  if (is_real()) return nullptr;
  void* library = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  void* get = library == nullptr ? nullptr : ::dlsym(library, "tessera_fake_cuda");
  return get == nullptr ? nullptr : reinterpret_cast<FakeCuda* (*)()>(get)();
}

}  // namespace tessera::internal::testing
