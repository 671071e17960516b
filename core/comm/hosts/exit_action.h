#pragma once

#include <functional>
#include <memory>

namespace tessera::internal::hosts {

/// What this rank does when its process ends while a group of its lives: exit() leaves MPI and
/// waits there for the others (Note [End of MPI]), who may wait for a collective that this rank
/// will never start. So what it has started is over before that, and then its host's ranks hear
/// that nothing follows. The actions run in the opposite order of their making, and before MPI is
/// left: handlers of exit() run in reverse order, and MPI's was registered before these.
class ExitAction {
 public:
  /// Local. Registers `act`, which is called by the thread that ends the process, unless this is
  /// destroyed first; not in a child of fork().
  explicit ExitAction(std::function<void()> act);
  /// Waits for `act` if it runs; not in a child of fork().
  ~ExitAction();
  ExitAction(const ExitAction&) = delete;
  ExitAction& operator=(const ExitAction&) = delete;

 private:
  struct Entry;
  class All;

  std::shared_ptr<Entry> entry_;
};

}  // namespace tessera::internal::hosts
