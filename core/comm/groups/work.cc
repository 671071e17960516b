#include "tessera/work.h"

#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/works.h"
#include "tessera/time_out.h"

namespace tessera {
using namespace internal;

namespace {

class CompletedWork final : public Work {
 public:
  bool is_completed() override { return true; }
  void wait() override {}
};

class ContinuedWork final : public Work {
 public:
  ContinuedWork(std::shared_ptr<Work> inner, std::function<std::shared_ptr<Work>()> then)
      : inner_(std::move(inner)), then_(std::move(then)) {}

  bool is_completed() override { return inner_->is_completed(); }

  void wait() override {
    inner_->wait();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (begun_ == nullptr) {
      begun_ = then_();
      then_ = nullptr;
    }
    begun_->wait();
  }

  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  std::mutex mutex_;
  std::function<std::shared_ptr<Work>()> then_;
  std::shared_ptr<Work> begun_;
};

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
  // The event is recorded only when a caller asks for it, because few do. So it may be recorded
  // later than necessary, but never too early.
  void record() {
    end_ = device_->make_event();
    stream_->record(*end_);
  }

  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Stream> stream_;
  std::shared_ptr<Event> end_;
};

constexpr auto kBetweenLooks = std::chrono::microseconds(50);

}  // namespace

std::shared_ptr<Work> internal::continued(std::shared_ptr<Work> inner,
                                          std::function<std::shared_ptr<Work>()> then) {
  return std::make_shared<ContinuedWork>(std::move(inner), std::move(then));
}

void internal::queue_copy(Device* device, const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() == 0 || data_of(to) == data_of(from)) return;
  if (device == nullptr) {
    return copy_bytes(data_of(to), data_of(from), static_cast<int64_t>(from.nbytes()));
  }
  // Copies between flat views, because the shapes may differ.
  const auto flat = [](const at::Tensor& tensor) { return tensor.detach().view({tensor.numel()}); };
  device->current_stream()->copy(flat(to), flat(from));
}

std::shared_ptr<Work> internal::queued_work(const std::shared_ptr<Device>& device) {
  return device == nullptr ? completed_work() : std::make_shared<StreamWork>(device);
}

bool Work::wait_for(std::chrono::milliseconds longest) {
  const auto end = std::chrono::steady_clock::now() + bounded(longest);
  while (!is_completed()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(kBetweenLooks);
  }
  return true;
}

std::shared_ptr<Work> completed_work() {
  // The Work has no state, so one object serves all callers, and a call that is over when it
  // returns allocates nothing. Never destroyed: Note [End of the process].
  static const auto* const work = new std::shared_ptr<Work>(std::make_shared<CompletedWork>());
  return *work;
}

}  // namespace tessera
