#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "tessera/core/device/device.h"

namespace tessera::internal::testing {

class DeviceStream;

/// Work that streams of a fake GPU were given during a capture, in the order of the calls, for any
/// number of replays. CUDA's rules hold: nothing runs during the capture; a stream takes part from
/// its first wait for an event of the capture; waits for events that are not of the capture break
/// it, as do waits on the host. Memory allocated during the capture lives as long as this object.
/// Any thread.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  /// Starts a capture on `origin`.
  static std::shared_ptr<Capture> begin(DeviceStream& origin);
  /// Ends the capture on all streams. Returns what was wrong, or "".
  std::string end();

  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Adds work of a capturing stream. The work must not hold this object.
  void add(const DeviceStream& stream, std::function<void()> work);
  void record(const DeviceStream& stream, const Event& event);

  /// Adds memory allocated during the capture. It reads as zeros until the end (an operator whose
  /// shapes are wanted may read it as an index), and as 0xFF from then to the first replay.
  void add_memory(void* data, size_t bytes);
  /// Keeps memory that was freed but that replays use.
  void keep(std::shared_ptr<void> memory);

  /// Breaks the capture, and throws CUDA's error.
  [[noreturn]] void refuse(const std::string& why);

  /// Runs everything once.
  void run() const;

  /// Call it before `stream` waits for `event`; `capture` is the stream's capture, or null. Returns
  /// the stream's capture from now on, or null if the event is not part of a capture, so that the
  /// stream has to wait for it.
  static std::shared_ptr<Capture> wait(DeviceStream& stream,
                                       const std::shared_ptr<Capture>& capture, const Event& event);
  /// Call it if the event was recorded on a stream that does not capture, or is destroyed.
  static void forget(const Event& event);
  /// Throws if the host queries an event that was last recorded in a capture.
  static void check_on_host(const Event& event);

 private:
  using Seen = std::map<const DeviceStream*, size_t>;  // how much work of each stream comes before
  struct Mark {
    std::weak_ptr<Capture> capture;
    Seen seen;
  };
  struct Marks;

  Capture() = default;
  static Marks& marks();

  mutable std::mutex mutex_;
  const DeviceStream* origin_ = nullptr;
  std::map<const DeviceStream*, Seen> streams_;
  std::set<DeviceStream*> members_;
  std::vector<std::function<void()>> work_;
  std::vector<std::pair<void*, size_t>> memory_;
  std::vector<std::shared_ptr<void>> kept_;
  std::string broken_;
  bool is_over_ = false;
};

}  // namespace tessera::internal::testing
