#include "tessera/core/comm/groups/stream_work.h"

#include <utility>

#include "tessera/core/comm/groups/host_memory.h"

namespace tessera::internal {
namespace {

class StreamWork final : public Work {
 public:
  explicit StreamWork(std::shared_ptr<Device> device)
      : device_(std::move(device)), stream_(device_->current_stream()) {}

  bool is_completed() override {
    if (end_ == nullptr) record();
    return end_->is_done();
  }

  void wait() override {
    const auto current = device_->current_stream();
    if (current->handle() == stream_->handle()) return;
    if (end_ == nullptr) record();
    current->wait(*end_);
  }

 private:
  // Only now, because hardly anyone asks; later than need be, never too early.
  void record() {
    end_ = device_->make_event();
    stream_->record(*end_);
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Stream> stream_;
  std::shared_ptr<Event> end_;
};

}  // namespace

void queue_copy(Device* device, const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() == 0 || data_of(to) == data_of(from)) return;
  if (device == nullptr) {
    return copy_bytes(data_of(to), data_of(from), static_cast<int64_t>(from.nbytes()));
  }
  // Shapes may differ.
  const auto flat = [](const at::Tensor& tensor) { return tensor.detach().view({tensor.numel()}); };
  device->current_stream()->copy(flat(to), flat(from));
}

std::shared_ptr<Work> queued_work(const std::shared_ptr<Device>& device) {
  return device == nullptr ? completed_work() : std::make_shared<StreamWork>(device);
}

}  // namespace tessera::internal
