#include "tessera/core/device/graph.h"

#include <dlfcn.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/core/device/graph_api.h"
#include "tessera/core/library/entry_points.h"

namespace tessera::internal {
namespace {

/// From now on, work that is queued on `later` runs only after the work that was queued on
/// `earlier` before this call.
void order(const c10::Stream& earlier, const c10::Stream& later) {
  if (earlier == later) return;
  c10::Event event(c10::DeviceType::CUDA);
  event.record(earlier);
  event.block(later);
}

class ModuleGraph final : public Graph {
 public:
  ModuleGraph(std::shared_ptr<const GraphApi> api, c10::Stream stream, const ModuleGraph* beside)
      : api_(std::move(api)), stream_(stream) {
    const int status =
        api_->make(stream.device_index(), beside ? beside->graph_ : nullptr, &graph_);
    TORCH_CHECK(status == 0, "[graph] module: got '", api_->error_text(), "' from '", api_->path,
                "', expected a graph; build Tessera with the CUDA Toolkit of LibTorch's CUDA");
  }

  // Destroys the graph before leave() restores the caller's stream, because destroying it ends a
  // capture that is still under way, and that must happen on stream().
  ~ModuleGraph() override {
    api_->destroy(graph_);
    try {
      leave();
    } catch (...) {  // a failed device does not need its stream back
    }
  }

  c10::Stream stream() const override { return stream_; }

  void begin() override {
    TORCH_CHECK(!tried_, "[graph] begin: got a second call, expected one per graph; make another");
    const c10::Stream caller = cuda_interface().getStream(stream_.device());
    const bool is_nested = [&] {
      const c10::StreamGuard on_caller(caller);
      return is_capturing();
    }();
    TORCH_CHECK(!is_nested,
                "[graph] begin: got a current stream that is being captured, expected"
                " one that is not; end that capture first");
    tried_ = true;
    order(caller, stream_);
    caller_ = caller;
    on_stream_.emplace(stream_);
    thread_ = std::this_thread::get_id();
    if (api_->begin(graph_) != 0) {
      const std::string reason = api_->error_text();
      leave();
      TORCH_CHECK(false, "[graph] begin: got '", reason,
                  "', expected a capture; see docs/gpu-internals.md, or train without graphs");
    }
  }

  void end() override {
    TORCH_CHECK(on_stream_.has_value(), "[graph] end: got no capture, expected one; call begin()");
    TORCH_CHECK(thread_ == std::this_thread::get_id(),
                "[graph] end: got another thread than begin(), expected the same");
    const bool is_well = api_->end(graph_) == 0;
    const std::string reason = is_well ? "" : api_->error_text();
    leave();
    TORCH_CHECK(is_well, "[graph] end: got '", reason,
                "', expected code that can be captured: one that does not wait for the device, and"
                " whose streams have all come back to the one of the graph; take what reads tensors"
                " on the host (item(), prints, copies to memory that is not pinned, shapes that"
                " depend on data) out of it, or train without graphs");
    is_ready_ = true;
  }

  void replay() override {
    TORCH_CHECK(is_ready_,
                "[graph] replay: got a graph without a capture that ended well, expected one; call"
                " begin() and end() first");
    const int status = api_->replay(graph_);
    TORCH_CHECK(status == 0, "[graph] replay: got '", api_->error_text(),
                "', expected a graph on the current stream; see docs/gpu-internals.md");
  }

  const std::shared_ptr<const GraphApi>& api() const { return api_; }

 private:
  void leave() {
    if (!on_stream_) return;
    on_stream_.reset();
    order(stream_, *caller_);
  }

  const std::shared_ptr<const GraphApi> api_;
  const c10::Stream stream_;
  void* graph_ = nullptr;
  std::optional<c10::Stream> caller_;
  std::optional<c10::StreamGuard> on_stream_;  ///< from begin() to end()
  std::thread::id thread_;
  bool tried_ = false;
  bool is_ready_ = false;
};

}  // namespace

std::unique_ptr<Graph> make_graph(at::Device device) {
  TORCH_CHECK(device.is_cuda() && device.has_index(), "[graph] device: got ", device.str(),
              ", expected a GPU with an index (cuda:0)");
  auto api = load_graph_api();
  TORCH_CHECK(api.ok(), api.status().message());
  return std::make_unique<ModuleGraph>(
      *std::move(api), cuda_interface().getStreamFromGlobalPool(device, /*isHighPriority=*/false),
      nullptr);
}

std::unique_ptr<Graph> make_graph_beside(const Graph& other) {
  const auto& beside = static_cast<const ModuleGraph&>(other);
  return std::make_unique<ModuleGraph>(beside.api(), beside.stream(), &beside);
}

bool is_capturing() {
  using Ask = int(void* stream, int* status);  // the type of cudaStreamIsCapturing()
  static std::atomic<Ask*> found = nullptr;

  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return false;
  Ask* ask = found.load(std::memory_order_relaxed);
  if (ask == nullptr) {
    void* library = ::dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    EntryPoints(library == nullptr ? RTLD_DEFAULT : library).find(ask, "cudaStreamIsCapturing");
    if (ask == nullptr) return false;
    found.store(ask, std::memory_order_relaxed);
  }
  // Do not query a device without a context: the query would make one, and nothing is being
  // captured there.
  const c10::Device device = cuda_interface().getDevice();
  if (!at::detail::getCUDAHooks().hasPrimaryContext(device.index())) return false;
  int status = 0;
  return ask(cuda_interface().getStream(device).native_handle(), &status) == 0 && status != 0;
}

}  // namespace tessera::internal
