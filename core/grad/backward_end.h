#pragma once

#include <memory>

namespace tessera::internal {

/// Called when an outermost backward on its thread has ended. Note [End of backward] in
/// backward_end.cc says how that is detected.
class BackwardListener {
 public:
  virtual ~BackwardListener() = default;

  /// The outermost backward (or autograd::grad) has run to its end; every hook has fired. Runs
  /// inside backward(), so an exception reaches its caller.
  virtual void backward_ended() = 0;

  /// The outermost backward ended in an exception.
  virtual void backward_failed() noexcept = 0;
};

/// Watches the backwards of the thread that makes it, for a listener. Local, cheap; a callback per
/// autograd node (about 10 ns) stays installed process-wide while any watch lives.
class BackwardWatch {
 public:
  /// Notifies no listener until tell().
  BackwardWatch();
  explicit BackwardWatch(BackwardListener& listener) : BackwardWatch() { tell(&listener); }
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// Sets the listener that is notified until the watch is destroyed; null: none.
  void tell(BackwardListener* listener);

  /// Returns true inside a backward that will report its end to this watch's listener. If it is
  /// false in a hook, backward was called on a thread without this listener.
  bool is_inside_backward() const;

  /// Returns true if the caller is on the thread that made the watch.
  bool is_own_thread() const;

  /// Returns true if such a backward is under way; any thread may ask.
  bool is_backward_running() const;

 private:
  struct Slot;
  struct Token;
  struct Observer;

  std::shared_ptr<Slot> slot_;
  BackwardListener* listener_ = nullptr;
};

}  // namespace tessera::internal
