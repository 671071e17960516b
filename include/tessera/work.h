#pragma once

#include <chrono>
#include <memory>

namespace tessera {

/// A collective or a message in flight, returned by a ProcessGroup. Until wait() has returned, the
/// tensors given to the collective must stay alive, inputs must not be changed and outputs not be
/// read.
class Work {
 public:
  virtual ~Work() = default;

  /// Local, never blocks. Returns true once the collective has finished or failed; it also fails if
  /// a rank that it needs has died or left. Calling only is_completed() never times out: the
  /// time-out is checked by wait(), by wait_for(), and by the group's thread if it has one.
  virtual bool is_completed() = 0;

  /// Blocks until the collective has finished; afterwards outputs are valid. On a GPU over NCCL it
  /// makes the current stream wait instead (Capabilities::completes_on_host is false). May be
  /// called more than once. Throws CommError if the collective failed.
  virtual void wait() = 0;

  /// Blocks until the collective has finished or failed, or for at most `longest`. Returns true if
  /// it has finished or failed.
  virtual bool wait_for(std::chrono::milliseconds longest);

  /// Local. For a receive, once wait() has returned: returns which rank of the group sent the
  /// message. For other calls: returns -1.
  virtual int source() const { return -1; }
};

/// A finished Work, for a collective that ran inside the call.
std::shared_ptr<Work> completed_work();

}  // namespace tessera
