#include "tessera/tests/support/fake_cuda/device_stream.h"

#include <utility>

namespace tessera::internal::testing {

void DeviceStream::enqueue(void* stream, void (*run)(void*), void* argument) {
  auto& queue = *static_cast<DeviceStream*>(stream);
  queue.check_on_host();  // host functions run once, so a graph cannot contain them
  ++queue.launches_;
  queue.run([run, argument] { run(argument); });
}

void DeviceStream::enqueue_repeatable(void* stream, void (*run)(void*), void (*drop)(void*),
                                      void* argument) {
  auto& queue = *static_cast<DeviceStream*>(stream);
  ++queue.launches_;
  const std::shared_ptr<void> kept(argument, drop);
  queue.run([run, kept] { run(kept.get()); });
}

DeviceStream::DeviceStream(std::shared_ptr<tessera::internal::Stream> queue, Kind kind)
    : queue_(std::move(queue)), kind_(kind), handle_{this, &enqueue, &enqueue_repeatable} {}

void DeviceStream::run(std::function<void()> work) {
  const std::shared_ptr<Capture> into = capture();
  if (into != nullptr) return into->add(*this, std::move(work));
  run_beside_capture(std::move(work));
}

void DeviceStream::run_beside_capture(std::function<void()> work) {
  // Queue under the lock, so that the queue has the order of the numbers.
  const std::lock_guard<std::mutex> lock(mutex_);
  ++queued_;
  HostDevice::run(*queue_, [this, work = std::move(work)]() mutable {
    work();
    work = nullptr;  // releases what it holds before anyone is notified
    const std::lock_guard<std::mutex> lock(mutex_);
    ++done_;
    changed_.notify_all();
  });
}

// is_idle() and drain() count the empty work after the event, and so wait for the event.
void DeviceStream::record(Event& event) {
  const std::shared_ptr<Capture> into = capture();
  if (into != nullptr) return into->record(*this, event);
  Capture::forget(event);
  queue_->record(event);
  run([] {});
}

void DeviceStream::wait(Event& event) {
  std::shared_ptr<Capture> into = Capture::wait(*this, capture(), event);
  if (into != nullptr) return set_capture(std::move(into));
  queue_->wait(event);
  run([] {});
}

bool DeviceStream::is_idle() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return done_ == queued_;
}

void DeviceStream::check_on_host() {
  const std::shared_ptr<Capture> into = capture();
  if (into != nullptr) {
    into->refuse("CUDA error: operation not permitted when stream is capturing");
  }
}

std::shared_ptr<Capture> DeviceStream::capture() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return capture_;
}

void DeviceStream::set_capture(std::shared_ptr<Capture> capture) {
  const std::lock_guard<std::mutex> lock(mutex_);
  capture_ = std::move(capture);
}

void DeviceStream::drain() {
  check_on_host();
  std::unique_lock<std::mutex> lock(mutex_);
  const uint64_t number = queued_;
  changed_.wait(lock, [&] { return done_ >= number; });
}

}  // namespace tessera::internal::testing
