#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "tessera/work.h"

namespace tessera::internal {

/// An ordered queue of communication. Closures run one after the other in the order in which they
/// were posted, inside post() or in a thread of the lane. Used by one posting thread at a time; any
/// thread may wait on the returned Work. When the process ends, the thread still runs the queued
/// closures; after that post() throws CommError (Note [End of the process]).
class Lane {
 public:
  enum class Mode : uint8_t {
    kInline,  ///< post() runs the closure; an exception leaves post() itself
    kThread,  ///< a thread runs the closures; an exception leaves Work::wait()
  };

  /// `interrupt` (may be null) is called in thread mode when the process ends, by any thread. If a
  /// closure is waiting, it must make the closure return or throw. It must not block.
  explicit Lane(Mode mode, std::function<void()> interrupt = nullptr);

  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  /// Runs or queues `closure`. Allocates nothing in inline mode. Local.
  template <typename Closure>
  std::shared_ptr<Work> post(Closure&& closure) {
    if (mode_ == Mode::kInline) {
      std::forward<Closure>(closure)();
      return completed_work();
    }
    return enqueue(std::function<void()>(std::forward<Closure>(closure)));
  }

  /// Discards closures that have not begun (their Work throws CommError) and joins the thread.
  /// Blocks while a closure runs, so the owner must make that closure return first. Nothing may be
  /// posted afterwards. The destructor calls it too.
  void close();

  Mode mode() const { return mode_; }

 private:
  class Task;
  struct Queue;

  std::shared_ptr<Work> enqueue(std::function<void()> closure);

  const Mode mode_;
  const std::unique_ptr<Queue> queue_;
};

}  // namespace tessera::internal
