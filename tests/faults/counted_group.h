#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/core/comm/groups/forwarding_group.h"
#include "tessera/process_group.h"
#include "tessera/tests/support/watched_window.h"

namespace tessera::internal::testing {

/// Calls a function once, at the n-th call that it counts. Threads that prefetch count, too.
class CallCountdown {
 public:
  /// Whether reads of windows count. Their errors may go unnoticed: an operator that does not look
  /// at the data leaves the error to the next one, which reads again.
  enum class Reads : uint8_t { kCounted, kLeftOut };

  CallCountdown(Reads reads, std::function<void()> then) : reads_(reads), then_(std::move(then)) {}

  /// Counts from now on; the function runs before or after that call.
  void start(int count, bool is_after) {
    is_after_ = is_after;
    left_ = count;
  }
  void before_call() {
    if (left_ <= 0 || --left_ != 0) return;
    if (is_after_) {
      is_due_ = true;
    } else {
      then_();
    }
  }
  void before_read() {
    if (reads_ == Reads::kLeftOut) return;
    after_call();  // ends the previous read
    before_call();
  }
  void after_call() {
    if (is_due_.exchange(false)) then_();
  }

 private:
  const Reads reads_;
  const std::function<void()> then_;
  std::atomic<int> left_ = 0;
  std::atomic<bool> is_after_ = false;
  std::atomic<bool> is_due_ = false;
};

/// Forwards all calls to another group and counts them: collectives, windows, shared buffers,
/// subgroups, and reads (which end at the beginning of the next call). Its subgroups share the
/// count.
class CountedGroup final : public ForwardingGroup {
 public:
  CountedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<CallCountdown> countdown)
      : ForwardingGroup(std::move(inner)), countdown_(std::move(countdown)) {}

  std::shared_ptr<Work> run(const Collective& collective) override {
    return counted([&] { return inner_->run(collective); });
  }
  std::unique_ptr<Window> make_window(const at::Tensor& own, std::string_view name) override {
    auto window = counted([&] { return inner_->make_window(own, name); });
    return std::make_unique<WatchedWindow>(
        std::move(window), [countdown = countdown_](int, const at::Tensor&, std::string_view) {
          countdown->before_read();
        });
  }
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override {
    return counted([&] { return inner_->make_shared_buffer(bytes, name); });
  }
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override {
    return counted([&] { return ForwardingGroup::subgroup(ranks, name); });
  }

 protected:
  std::shared_ptr<ProcessGroup> wrap(std::shared_ptr<ProcessGroup> inner) override {
    return std::make_shared<CountedGroup>(std::move(inner), countdown_);
  }

 private:
  template <typename Call>
  std::invoke_result_t<Call> counted(Call&& call) {
    countdown_->after_call();  // ends a read
    countdown_->before_call();
    auto result = call();
    countdown_->after_call();
    return result;
  }

  const std::shared_ptr<CallCountdown> countdown_;
};

}  // namespace tessera::internal::testing
