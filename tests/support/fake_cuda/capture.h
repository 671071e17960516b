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

/// What streams of a pretended GPU were given between the begin and the end of a capture, in the
/// order of the calls, to run as often as one likes. By CUDA's rules: nothing runs meanwhile; a
/// stream takes part from its first wait for an event of the capture; waits for events from outside
/// break it, and so does whoever waits on the host. Memory that was allocated meanwhile stays as
/// long as this. Any thread.
class Capture : public std::enable_shared_from_this<Capture> {
 public:
  /// `origin` captures from now on.
  static std::shared_ptr<Capture> begin(DeviceStream& origin);
  /// No stream captures any more. What was wrong, or "".
  std::string end();

  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// What a stream that takes part was given. It may hold nothing that holds this.
  void add(const DeviceStream& stream, std::function<void()> work);
  void record(const DeviceStream& stream, const Event& event);

  /// Memory that came meanwhile: reads as zeros until the end (an index of an operator whose shapes
  /// are wanted), and as 0xFF from then to the first replay.
  void add_memory(void* data, size_t bytes);
  /// Memory that was given back but that replays use.
  void keep(std::shared_ptr<void> memory);

  /// Breaks the capture, and throws as CUDA does.
  [[noreturn]] void refuse(const std::string& why);

  /// Runs everything once.
  void run() const;

  /// Before `stream`, which captures into `capture` if that is not null, waits for `event`: what it
  /// captures into from now on; null if the event is none of a capture's, and to be waited for.
  static std::shared_ptr<Capture> wait(DeviceStream& stream,
                                       const std::shared_ptr<Capture>& capture, const Event& event);
  /// The event was recorded on a stream that does not capture, or is gone.
  static void forget(const Event& event);
  /// Throws if the host asks for an event that was last recorded in a capture.
  static void check_on_host(const Event& event);

 private:
  using Seen = std::map<const DeviceStream*, size_t>;  // how much of a stream comes before
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
