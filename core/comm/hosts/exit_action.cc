#include "tessera/core/comm/hosts/exit_action.h"

#include <cstdlib>
#include <list>
#include <mutex>
#include <utility>

#include "tessera/core/process/fork.h"

namespace tessera::internal::hosts {

struct ExitAction::Entry {
  const Origin origin;
  std::recursive_mutex mutex;  // held while `act` runs, which may destroy its ExitAction
  std::function<void()> act;
};

class ExitAction::All {
 public:
  static All& get() {
    static auto* const all = new All;  // never destroyed: Note [End of the process]
    return *all;
  }
  void add(std::shared_ptr<Entry> entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_front(std::move(entry));
  }
  void remove(const std::shared_ptr<Entry>& entry) {
    const std::lock_guard lock(mutex_);
    entries_.remove(entry);
  }

 private:
  All() {
    hold_across_fork(mutex_);
    std::atexit([] { get().run(); });
  }

  /// Without the lock: what an action waits for may make groups, or let go of some.
  void run() {
    std::unique_lock lock(mutex_);
    const auto entries = entries_;
    lock.unlock();
    for (const auto& entry : entries) {
      if (!entry->origin.is_here()) continue;
      const std::lock_guard running(entry->mutex);
      if (const auto act = entry->act) act();
    }
  }

  std::mutex mutex_;
  std::list<std::shared_ptr<Entry>> entries_;  // the last one first
};

ExitAction::ExitAction(std::function<void()> act) : entry_(std::make_shared<Entry>()) {
  entry_->act = std::move(act);
  All::get().add(entry_);
}

ExitAction::~ExitAction() {
  All::get().remove(entry_);
  const std::lock_guard lock(entry_->mutex);
  entry_->act = nullptr;
}

}  // namespace tessera::internal::hosts
