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

  /// Local, never blocks. True once the collective has finished or failed, also because a rank that
  /// it needs has died or left. No time-out ends it where this rank only asks: that is for wait(),
  /// wait_for() and the thread of a group that has one.
  virtual bool is_completed() = 0;

  /// Blocks until the collective has finished; afterwards outputs are valid. On a GPU over NCCL it
  /// makes the current stream wait instead (Capabilities::completes_on_host is false). May be
  /// called more than once. Throws CommError if the collective failed.
  virtual void wait() = 0;

  /// Blocks until the collective has finished or failed, at most for `longest`; returns whether it
  /// has.
  virtual bool wait_for(std::chrono::milliseconds longest);

  /// Local. The rank of the group that a received message came from, after wait(); -1 for anything
  /// else.
  virtual int source() const { return -1; }
};

/// A finished Work, for a collective that ran inside the call.
std::shared_ptr<Work> completed_work();

}  // namespace tessera
