#pragma once

#include <csignal>
#include <initializer_list>

namespace tessera {

/// While a StopRequest lives, the signals given to it do not end the process. They are only
/// recorded, so that the program can save before it ends. The default is SIGTERM, which comes from
/// a scheduler that preempts the job, or from the job's user. Several objects may live; each sees
/// all signals recorded while any of them lived. Destroying the last one restores the previous
/// signal actions. Local.
class StopRequest {
 public:
  /// Records `signals` from now on, and unblocks them in the calling thread. Throws c10::Error for
  /// a signal that cannot be caught.
  explicit StopRequest(std::initializer_list<int> signals = {SIGTERM});
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// Returns true if one of the signals has been recorded. Any thread may call it; it costs one
  /// load.
  bool is_requested() const;
};

}  // namespace tessera
