#include "tessera/core/grad/backward_end.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/csrc/autograd/engine.h>

namespace tessera {

// Note [End of backward]
// A callback queued with Engine::queue_callback runs at the end of the graph task that is current
// when it is queued. Queued from a gradient hook that would be the inner backward of a re-entrant
// checkpoint. So it is queued at the very first autograd node of the outermost backward, which a
// RecordFunction callback of scope BACKWARD_FUNCTION sees; the `armed` flag keeps inner backwards
// from queueing again. The flag is reached through ThreadLocalDebugInfo, which autograd carries
// along to the threads it moves deep re-entrant backwards to; a thread_local would be lost there.
// When backward ends in an exception the callback never runs. The callback therefore owns a token
// that dies with the graph task; a token that dies before it was used reports the failure.

namespace {

/// The one slot of ThreadLocalDebugInfo that LibTorch itself neither reads nor writes. (A function,
/// because newer LibTorch has no constant for it.)
c10::DebugInfoKind slot_kind() { return c10::DebugInfoKind::PRODUCER_INFO; }

}  // namespace

/// What a rank's thread knows: its listeners, and whether a callback is queued for the backward
/// under way.
struct BackwardWatch::Slot : c10::DebugInfoBase, std::enable_shared_from_this<Slot> {
  std::vector<BackwardListener*> listeners;
  // Autograd's threads hand over inside LibTorch's lock, which the thread sanitizer does not see.
  std::atomic<bool> armed = false;
};

struct BackwardWatch::Token {
  explicit Token(std::shared_ptr<Slot> slot_of_thread) : slot(std::move(slot_of_thread)) {
    slot->armed = true;
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;
  ~Token() {
    if (slot == nullptr) return;
    slot->armed = false;
    for (BackwardListener* listener : slot->listeners) listener->backward_failed();
  }

  void use() {
    const std::shared_ptr<Slot> used = std::exchange(slot, nullptr);
    used->armed = false;
    for (size_t i = 0; i < used->listeners.size(); ++i) {
      try {
        used->listeners[i]->backward_ended();
      } catch (...) {
        for (++i; i < used->listeners.size(); ++i) used->listeners[i]->backward_failed();
        throw;
      }
    }
  }

  std::shared_ptr<Slot> slot;
};

/// The process-wide callback, installed while any watch lives.
struct BackwardWatch::Observer {
  std::mutex mutex;
  int64_t watches = 0;
  at::CallbackHandle handle = 0;

  static Observer& get() {
    static Observer observer;
    return observer;
  }

  static std::unique_ptr<at::ObserverContext> on_node_start(const at::RecordFunction&) {
    auto* slot = dynamic_cast<Slot*>(c10::ThreadLocalDebugInfo::get(slot_kind()));
    if (slot == nullptr || slot->armed || slot->listeners.empty()) return nullptr;
    auto token = std::make_shared<Token>(slot->shared_from_this());
    torch::autograd::Engine::get_default_engine().queue_callback([token] { token->use(); });
    return nullptr;
  }

  void add() {
    std::lock_guard lock(mutex);
    if (watches++ > 0) return;
    handle = at::addGlobalCallback(
        at::RecordFunctionCallback(&on_node_start).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  }

  void remove() {
    std::lock_guard lock(mutex);
    if (--watches == 0) at::removeCallback(handle);
  }
};

BackwardWatch::BackwardWatch(BackwardListener& listener) : listener_(&listener) {
  auto* known = dynamic_cast<Slot*>(c10::ThreadLocalDebugInfo::get(slot_kind()));
  if (known == nullptr) {
    slot_ = std::make_shared<Slot>();
    c10::ThreadLocalDebugInfo::_push(slot_kind(), slot_);
  } else {
    slot_ = known->shared_from_this();
  }
  slot_->listeners.push_back(listener_);
  Observer::get().add();
}

BackwardWatch::~BackwardWatch() {
  std::erase(slot_->listeners, listener_);
  Observer::get().remove();
}

bool BackwardWatch::is_inside_backward() const {
  return slot_->armed && c10::ThreadLocalDebugInfo::get(slot_kind()) == slot_.get();
}

}  // namespace tessera
