#pragma once

#include <chrono>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

namespace tessera::internal {

/// What `call` returns or throws, or nothing if it is not done by `deadline`: then its thread is
/// left behind with it. For calls of the system's or the user's that may block without limit, so
/// `call` owns all that it uses. Throws std::system_error without threads.
template <typename Call>
auto call_until(std::chrono::steady_clock::time_point deadline, Call call)
    -> std::optional<decltype(call())> {
  auto promise = std::make_shared<std::promise<decltype(call())>>();
  auto result = promise->get_future();
  std::thread([promise, call = std::move(call)]() mutable {
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
