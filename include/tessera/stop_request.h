#pragma once

#include <csignal>
#include <initializer_list>

namespace tessera {

/// While one lives, the signals that ask a process to end (SIGTERM: a scheduler that preempts a
/// job, the user who ends it) are only noted, so that the program can save before it ends. What
/// they did before is put back when the last one is destroyed. Several may live; each sees all that
/// was noted while any of them lived. Local.
class StopRequest {
 public:
  /// The calling thread blocks none of the signals afterwards. Throws c10::Error for a signal that
  /// cannot be caught.
  explicit StopRequest(std::initializer_list<int> signals = {SIGTERM});
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Returns true if one of the signals has come. From any thread; costs one load.
  bool is_requested() const;
};

}  // namespace tessera
