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

/// Does something once, at the n-th call that it is told of. Threads that read ahead tell it, too.
class CallCountdown {
 public:
  /// What a read of a window throws may go unheard: an operator that does not look at the data
  /// keeps it for the next one, which reads again.
  enum class Reads : uint8_t { kCounted, kLeftOut };

  CallCountdown(Reads reads, std::function<void()> then) : reads_(reads), then_(std::move(then)) {}

  /// From now on; before or after that call.
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
    after_call();  // the read before
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

/// Passes everything on to another group and counts its calls down: collectives, windows, shared
/// buffers, subgroups, and reads (whose end is the beginning of the next call). Its subgroups do
/// the same, with one count for all.
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
    countdown_->after_call();  // of a read
    countdown_->before_call();
    auto result = call();
    countdown_->after_call();
    return result;
  }

  const std::shared_ptr<CallCountdown> countdown_;
};

}  // namespace tessera::internal::testing
