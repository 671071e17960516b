#include "tessera/core/process/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

struct Held {
  std::mutex* mutex = nullptr;
  void (*in_child)() noexcept = nullptr;
};

}  // namespace

/// The functions that the C library calls around fork().
struct ForkHandlers {
  static void install() {
    static const int error = ::pthread_atfork(&before, &in_parent, &in_child);
    if (error == 0) return;
    throw std::runtime_error(absl::StrCat(
        "[fork] got no room for fork handlers, expected some; pthread_atfork returned ", error));
  }

  static void before() {
    adding.lock();
    for (const Held& one : held()) one.mutex->lock();
  }

  static void release() {
    for (const Held& one : held()) one.mutex->unlock();
    adding.unlock();
  }

  static void in_parent() { release(); }

  static void in_child() {
    const int error = errno;
    Origin::forks_so_far_.fetch_add(1, std::memory_order_relaxed);
    for (const Held& one : held()) {
      if (one.in_child != nullptr) one.in_child();
    }
    release();
    errno = error;
  }

  static std::vector<Held>& held() {
    // Never destroyed, because threads may call fork() while static objects are destroyed.
    static auto* const all = new std::vector<Held>;
    return *all;
  }

  static inline constinit std::mutex adding;
};

Origin::Origin()
    : forks_((ForkHandlers::install(), forks_so_far_.load(std::memory_order_relaxed))),
      pid_(::getpid()) {}

std::string Origin::fork_error(std::string_view whom) const {
  return absl::StrCat("this process is a fork of ", absl::string_view(whom.data(), whom.size()),
                      " (pid ", pid_,
                      ") and cannot use its groups, engines and parameters; use them there, "
                      "and copy what a child needs before fork(), by state_dict() or inside "
                      "full_parameters()");
}

void never_destroy(std::shared_ptr<void> what) {
  struct Abandoned {
    std::shared_ptr<void> what;
    Abandoned* next;
  };
  static constinit std::atomic<Abandoned*> all{nullptr};
  auto* const last = new Abandoned{std::move(what), all.load()};
  while (!all.compare_exchange_weak(last->next, last)) {
  }
}

void hold_across_fork(std::mutex& mutex, void (*in_child)() noexcept) {
  ForkHandlers::install();
  const std::lock_guard lock(ForkHandlers::adding);
  ForkHandlers::held().push_back({&mutex, in_child});
}

}  // namespace tessera::internal
