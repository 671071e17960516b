#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>
#include <torch/headeronly/version.h>

#include "tessera/core/device/graph_module/abi.h"

namespace tessera::internal::cuda_graph {
namespace {

thread_local std::string reason;

/// Runs `call`. Returns 0, or 1 with the exception's text in `reason`.
template <typename Call>
int report(const Call& call) noexcept {
  try {
    call();
    return 0;
  } catch (const c10::Error& error) {
    reason = error.what_without_backtrace();
  } catch (const std::exception& error) {
    reason = error.what();
  } catch (...) {
    reason = "an exception of an unknown type";
  }
  return 1;
}

/// Memory that graphs share. When a pool's last graph is destroyed, LibTorch forgets the pool and
/// refuses its id from then on, so the next graph begins a new pool.
class SharedPool {
 public:
  c10::MempoolId_t enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (graphs_++ == 0) id_ = at::cuda::graph_pool_handle();
    return id_;
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --graphs_;
  }

 private:
  std::mutex mutex_;
  int graphs_ = 0;
  c10::MempoolId_t id_;
};

class CudaGraph {
 public:
  CudaGraph(c10::DeviceIndex device, const CudaGraph* beside)
      : device_(device),
        shared_(beside == nullptr ? std::make_shared<SharedPool>() : beside->shared_) {}

  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  ~CudaGraph() {
    if (is_capturing_) report([&] { end(); });
    if (!graph_) return;
    report([&] { graph_.reset(); });
    shared_->leave();
  }

  void begin() {
    TORCH_CHECK(!graph_, "a graph is captured once");
    pool_ = shared_->enter();
    graph_.emplace();
    try {
      // In this mode the restrictions of a capture apply to the calling thread only. In the default
      // mode any other thread that calls the driver, such as the one that watches communicators,
      // would break the capture. LibTorch's backward thread queues work on the captured stream;
      // such work is captured in every mode, and the thread stays free to allocate. This call also
      // registers the default generator with the graph.
      graph_->capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    } catch (...) {
      clean_up();
      throw;
    }
    is_capturing_ = true;
  }

  void end() {
    TORCH_CHECK(std::exchange(is_capturing_, false), "a graph that is not being captured");
    try {
      graph_->capture_end();
    } catch (...) {
      clean_up();
      throw;
    }
    is_ready_ = true;
  }

  void replay() {
    TORCH_CHECK(is_ready_, "a graph whose capture has not ended well");
    graph_->replay();
  }

 private:
  /// Takes LibTorch's allocators and its generator out of capture mode, in which a failed capture
  /// leaves them. In that mode device memory would come from the pool, through a destroyed graph,
  /// and the generator would refuse to work. Newer LibTorch versions do some of this in reset();
  /// the calls that repeat it then fail, and report() ignores that.
  void clean_up() noexcept {
    report([&] { graph_->reset(); });
    report([&] {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_);
      c10::cuda::CUDACachingAllocator::releasePool(device_, pool_);
    });
    report([&] {
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    });
    report([&] { free_generator(); });
  }

  /// Takes the default generator out of capture mode, in which it refuses even a request for 0
  /// numbers. Its new state is that of a copy, which has the same seed and position but is not in
  /// capture mode.
  void free_generator() {
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(at::kCUDA, device_));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    try {
      at::check_generator<at::CUDAGeneratorImpl>(generator)->philox_cuda_state(0);
    } catch (const c10::Error&) {
      generator.graphsafe_set_state(generator.clone());
    }
  }

  const c10::DeviceIndex device_;
  const std::shared_ptr<SharedPool> shared_;
  c10::MempoolId_t pool_;
  std::optional<at::cuda::CUDAGraph> graph_;
  bool is_capturing_ = false;
  bool is_ready_ = false;
};

/// Throws unless the CUDA runtime has the major version of the headers that this module was
/// compiled with, because struct sizes and calls may differ between major versions.
void check_runtime() {
  int version = 0;
  const cudaError_t status = cudaRuntimeGetVersion(&version);
  TORCH_CHECK(status == cudaSuccess, "no CUDA runtime: ", cudaGetErrorString(status));
  TORCH_CHECK(version / 1000 == CUDART_VERSION / 1000, "LibTorch brings CUDA ", version / 1000,
              ", and this module was built with the headers of CUDA ", CUDART_VERSION / 1000);
}

}  // namespace

extern "C" {

int tessera_cuda_graph_interface_version() { return kInterfaceVersion; }

const char* tessera_cuda_graph_torch_version() { return TORCH_VERSION; }

const char* tessera_cuda_graph_error_text() { return reason.c_str(); }

int tessera_cuda_graph_make(int device, const void* beside, void** graph) {
  return report([&] {
    check_runtime();
    *graph =
        new CudaGraph(static_cast<c10::DeviceIndex>(device), static_cast<const CudaGraph*>(beside));
  });
}

int tessera_cuda_graph_begin(void* graph) {
  return report([&] { static_cast<CudaGraph*>(graph)->begin(); });
}

int tessera_cuda_graph_end(void* graph) {
  return report([&] { static_cast<CudaGraph*>(graph)->end(); });
}

int tessera_cuda_graph_replay(void* graph) {
  return report([&] { static_cast<CudaGraph*>(graph)->replay(); });
}

void tessera_cuda_graph_destroy(void* graph) { delete static_cast<CudaGraph*>(graph); }

}  // extern "C"

}  // namespace tessera::internal::cuda_graph
