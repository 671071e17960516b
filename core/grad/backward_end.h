#pragma once

#include <memory>

namespace tessera::internal {

/// Is told when an outermost backward on the listener's thread has ended or failed. Note [End of
/// backward] in backward_end.cc says how that is detected.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;

  /// The outermost backward (or autograd::grad) has finished, and every hook has run. Called inside
  /// backward(), so an exception reaches its caller.
  virtual void backward_ended() = 0;

  /// The outermost backward ended in an exception.
  virtual void backward_failed() noexcept = 0;
};

/// Watches, for a listener, every backward that the constructing thread calls. Local, cheap. A
/// process-wide callback, which costs 0.1 to 0.2 us for each autograd node of any thread, is on
/// while some thread has a listener and no backward under way.
class BackwardWatch {
 public:
  /// Notifies no listener until tell() sets one.
  BackwardWatch();
  explicit BackwardWatch(BackwardListener& listener) : BackwardWatch() { tell(&listener); }
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// From now on, until the next tell() or the watch is destroyed, notifies `listener`, or nobody
  /// if it is null.
  void tell(BackwardListener* listener);

  /// Returns true inside a backward that will report its end to this watch's listener. If it is
  /// false in a hook, backward was called on a thread without this listener.
  bool is_inside_backward() const;

  /// Returns true if the caller is on the thread that made the watch.
  bool is_own_thread() const;

  /// Returns true if a backward that will notify the listener is under way. Any thread.
  bool is_backward_running() const;

 private:
  struct Slot;
  struct Token;
  struct Observer;

  std::shared_ptr<Slot> slot_;
  BackwardListener* listener_ = nullptr;
};

}  // namespace tessera::internal
