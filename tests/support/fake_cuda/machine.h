#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <tuple>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "tessera/tests/support/fake_cuda/device_stream.h"
#include "tessera/tests/support/host_device.h"

namespace tessera::internal::testing {

/// Reads a number from the environment.
int64_t number_of(const char* name, int64_t otherwise);

/// The fake machine: its GPUs, their streams and generators, and event counts. One per process,
/// never destroyed, because streams' threads outlive main(). Any thread.
class Machine {
 public:
  static constexpr int kMaxDevices = 16;

  static Machine& get();
  static int device_count();
  static c10::Device torch_device(int device) {
    return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device)};
  }

  /// The calling thread's device.
  static int current();
  /// Makes the device current, and makes its context unless the device was current already.
  void make_current(int device);
  /// Restores a device, as a driver does: makes no context.
  static void restore_current(int device);
  void make_context(int device);
  bool has_context(int device);
  std::set<int> contexts();
  void forget_contexts();

  static c10::Stream stream(int device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, torch_device(device), id);
  }
  /// The calling thread's current stream of a device.
  static c10::Stream current_stream(int device);
  static void set_current_stream(c10::Stream stream);
  /// Returns the next stream of the device's pool of that priority; after kPool calls they repeat.
  c10::Stream next_stream(int device, bool is_high_priority);
  DeviceStream& queue(c10::Stream stream);
  DeviceStream& current_queue(int device) { return queue(current_stream(device)); }
  /// All streams of the device on which work was queued.
  std::vector<DeviceStream*> queues(int device);
  std::shared_ptr<Event> make_event() { return host_.make_event(); }
  std::vector<bool> priorities();

  /// The device's generator, which uses the CPU's algorithm.
  const at::Generator& generator(int device);

  struct Counts {
    std::atomic<int64_t> host_syncs{0};
    std::atomic<int64_t> operators{0};
  };
  Counts& counts(int device) { return counts_[static_cast<size_t>(device)]; }

  std::atomic<int> events_made{0};
  std::atomic<int> events_destroyed{0};
  std::atomic<int> events_with_timing{0};

 private:
  static constexpr int64_t kPool = 128;

  Machine();

  std::mutex mutex_;
  HostDevice host_;
  std::map<std::pair<int, int64_t>, std::unique_ptr<DeviceStream>> streams_;  // device, id
  std::map<std::pair<int, bool>, int64_t> handed_out_;                        // device, priority
  std::vector<bool> priorities_;
  std::set<int> contexts_;
  std::array<at::Generator, kMaxDevices> generators_;
  std::array<Counts, kMaxDevices> counts_;
};

}  // namespace tessera::internal::testing
