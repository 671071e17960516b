#include "tessera/core/comm/groups/stream_work.h"

#include <utility>

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

std::shared_ptr<Work> queued_work(std::shared_ptr<Device> device) {
  return std::make_shared<StreamWork>(std::move(device));
}

}  // namespace tessera::internal
