#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal {

/// Runs `call` in a thread and returns or throws its result, or returns nothing if it is not done
/// by `deadline`; the thread is detached then. For system calls and user code that may block
/// forever; `call` must own all that it uses. Throws std::runtime_error if no thread can be
/// started.
template <typename Call>
auto call_until(std::chrono::steady_clock::time_point deadline, Call call)
    -> std::optional<decltype(call())> {
  auto promise = std::make_shared<std::promise<decltype(call())>>();
  auto result = promise->get_future();
  thread_without_signals("a call that may not return", [promise, call = std::move(call)]() mutable {
    try {
      promise->set_value(call());
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  }).detach();
  if (result.wait_until(deadline) != std::future_status::ready) return std::nullopt;
  return result.get();
}

}  // namespace tessera::internal
