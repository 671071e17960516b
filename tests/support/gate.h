#pragma once

#include <future>
#include <memory>
#include <utility>

#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// Blocks a stream until open() is called.
class Gate {
 public:
  /// `handle`: Stream::handle() of a host stream, or the native handle of a stream of the fake GPU.
  explicit Gate(void* handle) {
    const auto* stream = static_cast<const HostStreamHandle*>(handle);
    stream->enqueue(
        stream->stream,
        [](void* opened) {
          const std::unique_ptr<std::shared_future<void>> wait(
              static_cast<std::shared_future<void>*>(opened));
          wait->wait();
        },
        new std::shared_future<void>(opened_.get_future()));
  }
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  void open() {
    if (!std::exchange(is_open_, true)) opened_.set_value();
  }

 private:
  std::promise<void> opened_;
  bool is_open_ = false;
};

}  // namespace tessera::internal::testing
