#include "tessera/core/access/global_callback.h"

#include <atomic>
#include <cstdlib>
#include <utility>

namespace tessera::internal {
namespace {

std::atomic<bool> has_exit_begun{false};

}  // namespace

GlobalCallback::GlobalCallback(at::RecordFunctionCallback callback)
    : handle_(at::addGlobalCallback(std::move(callback))) {
  // LibTorch has made its list of callbacks by now. So this handler, registered later, runs before
  // the list is destroyed.
  static const int registered = std::atexit([] { has_exit_begun = true; });
  static_cast<void>(registered);
}

GlobalCallback::~GlobalCallback() {
  if (!has_exit_begun) at::removeCallback(handle_);
}

void GlobalCallback::turn(bool on) {
  if (is_on_ == on || has_exit_begun) return;
  is_on_ = on;
  if (on) {
    at::reenableCallback(handle_);
  } else {
    at::disableCallback(handle_);
  }
}

}  // namespace tessera::internal
