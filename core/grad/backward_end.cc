#include "tessera/core/grad/backward_end.h"

#include <atomic>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/thread_name.h>
#include <torch/csrc/autograd/engine.h>

#include "tessera/core/access/global_callback.h"
#include "tessera/core/process/fork.h"

namespace tessera::internal {

// Note [End of backward]
// A callback queued with Engine::queue_callback runs at the end of the graph task that is current
// when it is queued. In a gradient hook that could be the inner backward of a re-entrant
// checkpoint. So we queue it at the first autograd node of the outermost backward, which a
// RecordFunction callback of scope BACKWARD_FUNCTION sees; the `armed` flag keeps inner backwards
// from queueing again. If backward ends in an exception, the callback never runs. So the callback
// owns a token that is destroyed with the graph task; a token that is destroyed unused reports the
// failure.
//
// The flag belongs to the thread that called backward, but nodes may run on other threads: devices
// have their own threads, and deep re-entrant backwards continue on a pool. These threads do not
// see a thread_local, but autograd propagates the thread-local RecordFunction callbacks of the
// calling thread to them. So we mark the thread by a callback that never runs; its handle
// identifies the caller of backward. (ThreadLocalDebugInfo is propagated too, but it is a stack:
// our entry could lie on top of a profiler's when the profiler pops its entry, and our entry is
// lost when the guard inside which it was pushed ends.) Some guards restore all callbacks of a
// thread and so remove the mark; therefore the rank's own thread also finds its slot through a
// thread_local. at::launch propagates the mark, too, to threads that may call backward themselves,
// on other models. So only a rank's own thread and autograd's device threads, which are recognised
// by name, begin a backward of the rank.
//
// The callback costs 0.1 to 0.2 us for every node and is needed only for the first one of a
// backward. So it is off while no thread waits for its backward to begin: a process of one rank
// pays for one node. Where ranks are threads, they pay until the last one has begun its backward.

namespace {

/// The callback that marks a thread; see Note [End of backward]. It never runs.
std::unique_ptr<at::ObserverContext> mark(const at::RecordFunction&) { return nullptr; }

/// A RecordFunction scope that does not occur in training, so that mark() is never called.
constexpr auto kNoScope = at::RecordScope::LITE_INTERPRETER;

}  // namespace

/// State of a rank's thread: its listeners, and whether a callback is queued for this backward.
struct BackwardWatch::Slot : std::enable_shared_from_this<Slot> {
  std::vector<BackwardListener*> listeners;
  // Atomic because is_backward_running() may come from any thread. (Autograd's threads synchronise
  // by a lock in LibTorch, which the thread sanitizer does not see.)
  std::atomic<bool> armed = false;

  /// Returns true if somebody is to be told of a backward that has not begun.
  bool is_waiting() const { return !listeners.empty() && !armed; }
};

struct BackwardWatch::Token {
  explicit Token(std::shared_ptr<Slot> slot_of_thread);
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  ~Token();

  void use();

  std::shared_ptr<Slot> slot;
};

/// The process-wide callback, installed while any watch lives, and the slot of each mark.
struct BackwardWatch::Observer {
  std::mutex mutex;
  int64_t watches = 0;
  int64_t waiting = 0;  // slots with is_waiting()
  std::optional<GlobalCallback> callback;
  std::unordered_map<at::CallbackHandle, std::weak_ptr<Slot>> slots;  // by mark

  static Observer& get() {
    // Never destroyed, because autograd's threads may outlive static objects.
    static auto* const observer = make();
    return *observer;
  }

  static Observer* make() {
    auto* const made = new Observer;
    hold_across_fork(made->mutex);
    return made;
  }

  /// Returns the slot of the calling thread.
  static std::shared_ptr<Slot>& own_slot() {
    thread_local std::shared_ptr<Slot> own;
    return own;
  }

  /// Returns the slot of the latest mark that this thread carries; null if there is none.
  static Slot* marked_slot() {
    const auto& callbacks = at::get_record_function_tls_().sorted_tls_callbacks_;
    for (auto callback = callbacks.rbegin(); callback != callbacks.rend(); ++callback) {
      if (callback->callback_.start() != &mark) continue;
      if (Slot* const slot = get().slot_of(callback->handle_)) return slot;
    }
    return nullptr;
  }

  /// Returns the slot of the rank for which the calling thread works; null if there is none.
  static Slot* current_slot() {
    Slot* const own = own_slot().get();
    return own != nullptr ? own : marked_slot();
  }

  /// Called where a backward begins. Returns the slot of the thread that called backward; null if
  /// that thread has no slot.
  static Slot* slot_of_caller() {
    thread_local const bool is_autograds = c10::getThreadName().starts_with("pt_autograd_");
    return is_autograds ? current_slot() : own_slot().get();
  }

  Slot* slot_of(at::CallbackHandle mark_handle) {
    thread_local at::CallbackHandle known = at::INVALID_CALLBACK_HANDLE;
    thread_local std::shared_ptr<Slot> slot;
    if (known != mark_handle) {
      const std::lock_guard lock(mutex);
      const auto found = slots.find(mark_handle);
      slot = found == slots.end() ? nullptr : found->second.lock();
      known = mark_handle;
    }
    return slot.get();
  }

  /// Marks the calling thread, whose slot is `slot`.
  void mark_thread(const std::shared_ptr<Slot>& slot) {
    const at::CallbackHandle added =
        at::addThreadLocalCallback(at::RecordFunctionCallback(&mark).scopes({kNoScope}));
    const std::lock_guard lock(mutex);
    std::erase_if(slots, [](const auto& entry) { return entry.second.expired(); });
    slots.emplace(added, slot);
  }

  static std::unique_ptr<at::ObserverContext> on_node_start(const at::RecordFunction&) {
    Slot* const slot = slot_of_caller();
    if (slot == nullptr || slot->armed || slot->listeners.empty()) return nullptr;
    auto token = std::make_shared<Token>(slot->shared_from_this());
    torch::autograd::Engine::get_default_engine().queue_callback([token] { token->use(); });
    return nullptr;
  }

  void add() {
    std::lock_guard lock(mutex);
    if (watches++ > 0) return;
    callback.emplace(
        at::RecordFunctionCallback(&on_node_start).scopes({at::RecordScope::BACKWARD_FUNCTION}));
    turn_callback();
  }

  void remove() {
    std::lock_guard lock(mutex);
    if (--watches == 0) callback.reset();
  }

  void arm(Slot& slot, bool on) {
    change(slot, [&] { slot.armed = on; });
  }

  /// Calls change(), which may change what slot.is_waiting() returns, and turns the callback on or
  /// off accordingly.
  template <typename Change>
  void change(Slot& slot, Change&& change) {
    const std::lock_guard lock(mutex);
    if (slot.is_waiting()) --waiting;
    change();
    if (slot.is_waiting()) ++waiting;
    turn_callback();
  }

  void turn_callback() {
    if (callback.has_value()) callback->turn(waiting > 0);
  }
};

BackwardWatch::Token::Token(std::shared_ptr<Slot> slot_of_thread)
    : slot(std::move(slot_of_thread)) {
  Observer::get().arm(*slot, true);
}

BackwardWatch::Token::~Token() {
  if (slot == nullptr) return;
  Observer::get().arm(*slot, false);
  for (BackwardListener* listener : slot->listeners) listener->backward_failed();
}

void BackwardWatch::Token::use() {
  const std::shared_ptr<Slot> used = std::exchange(slot, nullptr);
  Observer::get().arm(*used, false);
  for (size_t i = 0; i < used->listeners.size(); ++i) {
    try {
      used->listeners[i]->backward_ended();
    } catch (...) {
      for (++i; i < used->listeners.size(); ++i) used->listeners[i]->backward_failed();
      throw;
    }
  }
}

BackwardWatch::BackwardWatch() {
  std::shared_ptr<Slot>& own = Observer::own_slot();
  if (own == nullptr) own = std::make_shared<Slot>();
  slot_ = own;
  if (Observer::marked_slot() != own.get()) Observer::get().mark_thread(own);
  Observer::get().add();
}

BackwardWatch::~BackwardWatch() {
  tell(nullptr);
  Observer::get().remove();
}

void BackwardWatch::tell(BackwardListener* listener) {
  Observer::get().change(*slot_, [&] {
    std::erase(slot_->listeners, listener_);
    if (listener != nullptr) slot_->listeners.push_back(listener);
  });
  listener_ = listener;
}

bool BackwardWatch::is_inside_backward() const {
  return is_backward_running() && Observer::current_slot() == slot_.get();
}

bool BackwardWatch::is_own_thread() const { return Observer::own_slot() == slot_; }

bool BackwardWatch::is_backward_running() const { return slot_->armed; }

}  // namespace tessera::internal
