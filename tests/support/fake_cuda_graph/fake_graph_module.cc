// libtessera_cuda_graph.so over the loaded fake libtorch_cuda.so: the same entry points, so that
// all of core/device/graph runs on a machine without a GPU.
#include <dlfcn.h>

#include <exception>
#include <string>

#include <c10/util/Exception.h>
#include <torch/headeronly/version.h>

#include "tessera/core/device/graph_module/abi.h"
#include "tessera/tests/support/fake_cuda/fake_graph.h"

namespace tessera::internal::cuda_graph {
namespace {

using testing::FakeGraph;

thread_local std::string reason;

template <typename Call>
int report(const Call& call) noexcept {
  try {
    call();
    return 0;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return 1;
}

}  // namespace

extern "C" {

int tessera_cuda_graph_interface_version() { return kInterfaceVersion; }

const char* tessera_cuda_graph_torch_version() { return TORCH_VERSION; }

const char* tessera_cuda_graph_error_text() { return reason.c_str(); }

int tessera_cuda_graph_make(int device, const void* /*beside*/, void** graph) {
  return report([&] {
    void* library = ::dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    TORCH_CHECK(library != nullptr, "no fake libtorch_cuda.so is loaded");
    const auto make =
        reinterpret_cast<FakeGraph* (*)(int)>(::dlsym(library, "tessera_fake_cuda_graph"));
    TORCH_CHECK(make != nullptr, "the libtorch_cuda.so that is loaded is not the fake");
    *graph = make(device);
  });
}

int tessera_cuda_graph_begin(void* graph) {
  return report([&] { static_cast<FakeGraph*>(graph)->begin(); });
}

int tessera_cuda_graph_end(void* graph) {
  return report([&] { static_cast<FakeGraph*>(graph)->end(); });
}

int tessera_cuda_graph_replay(void* graph) {
  return report([&] { static_cast<FakeGraph*>(graph)->replay(); });
}

void tessera_cuda_graph_destroy(void* graph) { delete static_cast<FakeGraph*>(graph); }

}  // extern "C"

}  // namespace tessera::internal::cuda_graph
