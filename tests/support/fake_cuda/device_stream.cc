#include "tessera/tests/support/fake_cuda/device_stream.h"

#include <utility>

namespace tessera::testing {

DeviceStream::DeviceStream(std::shared_ptr<tessera::Stream> queue)
    : queue_(std::move(queue)), handle_{this, [](void* stream, void (*run)(void*), void* argument) {
                                          static_cast<DeviceStream*>(stream)->run(
                                              [run, argument] { run(argument); });
                                        }} {}

void DeviceStream::run(std::function<void()> work) {
  // Inside the lock, so that the queue's order is that of the numbers.
  const std::lock_guard<std::mutex> lock(mutex_);
  ++queued_;
  HostDevice::run(*queue_, [this, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // what it holds goes before anyone is told
    const std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    changed_.notify_all();
  });
}

// The empty work behind them is what counts.
void DeviceStream::record(Event& event) {
  queue_->record(event);
  run([] {});
}

void DeviceStream::wait(Event& event) {
  queue_->wait(event);
  run([] {});
}

bool DeviceStream::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == queued_;
}

void DeviceStream::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t number = queued_;
  changed_.wait(lock, [&] { return done_ >= number; });
}

}  // namespace tessera::testing
