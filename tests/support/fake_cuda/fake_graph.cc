#include "tessera/tests/support/fake_cuda/fake_graph.h"

#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/tests/support/fake_cuda/capture.h"
#include "tessera/tests/support/fake_cuda/machine.h"

namespace tessera::internal::testing {
namespace {

class CaptureGraph final : public FakeGraph {
 public:
  explicit CaptureGraph(int device) : device_(device) {}

  ~CaptureGraph() override {
    if (is_capturing_) capture_->end();
  }

  void begin() override {
    DeviceStream& stream = queue();
    TORCH_CHECK(!stream.is_default(), "CUDA graphs must be captured on a non-default stream.");
    TORCH_CHECK(capture_ == nullptr, "This CUDAGraph instance already owns a captured graph.");
    capture_ = Capture::begin(stream);
    origin_ = &stream;
    is_capturing_ = true;
  }

  void end() override {
    TORCH_CHECK(std::exchange(is_capturing_, false), "not capturing");
    const bool is_same = origin_ == &queue();
    const std::string problem = capture_->end();
    TORCH_CHECK(is_same, "Capture must end on the same stream it began on.");
    TORCH_CHECK(problem.empty(), problem);
    is_ready_ = true;
  }

  void replay() override {
    TORCH_CHECK(is_ready_, "Called CUDAGraph::replay without a preceding successful capture.");
    queue().run([capture = capture_] { capture->run(); });
  }

 private:
  DeviceStream& queue() const { return Machine::get().current_queue(device_); }

  const int device_;
  std::shared_ptr<Capture> capture_;
  const DeviceStream* origin_ = nullptr;
  bool is_capturing_ = false;
  bool is_ready_ = false;
};

}  // namespace

std::unique_ptr<FakeGraph> make_fake_graph(int device) {
  return std::make_unique<CaptureGraph>(device);
}

}  // namespace tessera::internal::testing
