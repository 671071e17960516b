#include "tessera/stop_request.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>

#include <c10/util/Exception.h>

namespace tessera {

namespace {

// Process-wide, because a signal handler cannot access anything else.
std::atomic<bool> requested = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void note(int /*signal*/) { requested = true; }

/// The previous actions of the signals, and the number of StopRequests that live.
struct Handlers {
  std::mutex mutex;
  int requests = 0;
  std::map<int, struct sigaction> earlier;
};
Handlers& handlers() {
  static Handlers all;
  return all;
}

void restore(Handlers& all) {
  for (const auto& [signal, earlier] : all.earlier) ::sigaction(signal, &earlier, nullptr);
  all.earlier.clear();
}

}  // namespace

StopRequest::StopRequest(std::initializer_list<int> signals) {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (all.requests == 0) requested = false;
  for (const int signal : signals) {
    if (all.earlier.count(signal) > 0) continue;
    struct sigaction action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    struct sigaction earlier = {};
    if (::sigaction(signal, &action, &earlier) != 0) {
      const char* const reason = std::strerror(errno);
      if (all.requests == 0) restore(all);
      TORCH_CHECK(false, "[process] StopRequest: got signal ", signal,
                  ", expected one that can be caught; ", reason);
    }
    all.earlier[signal] = earlier;
  }
  ++all.requests;
  // The parent process may have blocked these signals, and then none would ever arrive.
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : signals) sigaddset(&wanted, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &wanted, nullptr);
}

StopRequest::~StopRequest() {
  Handlers& all = handlers();
  const std::lock_guard lock(all.mutex);
  if (--all.requests == 0) restore(all);
}

bool StopRequest::is_requested() const { return requested; }

}  // namespace tessera
