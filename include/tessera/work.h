#pragma once

#include <memory>

namespace tessera {

/// A collective in flight. Obtained from a ProcessGroup; the tensors given to the collective must
/// stay alive and unchanged (inputs) or unread (outputs) until wait() has returned.
class Work {
 public:
  virtual ~Work() = default;

  /// Local, never blocks. True once the collective has finished, well or not.
  virtual bool is_completed() = 0;

  /// Blocks until the collective has finished; afterwards outputs are valid. May be called more
  /// than once. Throws CommError if it failed.
  virtual void wait() = 0;
};

/// A Work that is already done: what a collective returns when it ran inside the call.
std::shared_ptr<Work> completed_work();

}  // namespace tessera
