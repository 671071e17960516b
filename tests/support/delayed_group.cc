#include "tessera/tests/support/delayed_group.h"

#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

namespace tessera::testing {
namespace {

/// All bits set is a NaN in every floating dtype. Raw bytes, because an operator would bump version
/// counters.
void poison(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const int byte = at::isFloatingType(tensor.scalar_type()) ? 0xff : 0x7f;
  std::memset(tensor.data_ptr(), byte, tensor.nbytes());
}

using Bytes = std::vector<char>;

Bytes bytes_of(const at::Tensor& tensor) {
  const auto* data = static_cast<const char*>(tensor.const_data_ptr());
  return Bytes(data, data + tensor.nbytes());
}

void restore(const at::Tensor& tensor, const Bytes& bytes) {
  if (!bytes.empty()) std::memcpy(tensor.data_ptr(), bytes.data(), bytes.size());
}

bool overlap(const at::Tensor& a, const at::Tensor& b) {
  const auto* a_begin = static_cast<const char*>(a.const_data_ptr());
  const auto* b_begin = static_cast<const char*>(b.const_data_ptr());
  return a_begin < b_begin + b.nbytes() && b_begin < a_begin + a.nbytes();
}

}  // namespace

DelayedGroup::DelayedGroup(std::shared_ptr<ProcessGroup> inner, DelayOptions options)
    : ForwardingGroup(std::move(inner)),
      options_(options),
      random_(options.seed * 1000003 + static_cast<uint64_t>(inner_->rank())),
      lane_(Lane::Mode::kThread) {}

DelayedGroup::~DelayedGroup() {
  // What is still in flight may wait for a rank that failed; joining the lane must not.
  if (!lane_.is_idle()) inner_->abort("a delayed group was destroyed with work in flight");
}

std::shared_ptr<Work> DelayedGroup::late(std::function<void()> collective) {
  std::uniform_int_distribution<int64_t> delay(0, options_.longest.count());
  const std::chrono::microseconds pause(delay(random_));
  return lane_.post([pause, collective = std::move(collective)] {
    std::this_thread::sleep_for(pause);
    collective();
  });
}

std::shared_ptr<Work> DelayedGroup::all_reduce(const at::Tensor& tensor, ReduceOp op,
                                               std::string_view tag) {
  check_all_reduce(tensor, op, place());
  auto input = bytes_of(tensor);
  poison(tensor);
  return late([this, tensor, op, tag = std::string(tag), input = std::move(input)] {
    restore(tensor, input);
    inner_->all_reduce(tensor, op, tag)->wait();
  });
}

std::shared_ptr<Work> DelayedGroup::reduce_scatter(const at::Tensor& output,
                                                   const at::Tensor& input, ReduceOp op,
                                                   std::string_view tag, int slice) {
  check_reduce_scatter(output, input, op, size(), slice, place());
  auto own = overlap(output, input) ? bytes_of(output) : Bytes();
  poison(output);
  return late([this, output, input, op, tag = std::string(tag), own = std::move(own), slice] {
    restore(output, own);
    inner_->reduce_scatter(output, input, op, tag, slice)->wait();
  });
}

std::shared_ptr<Work> DelayedGroup::all_gather(const at::Tensor& output, const at::Tensor& input,
                                               std::string_view tag) {
  check_all_gather(output, input, size(), place());
  auto own = overlap(output, input) ? bytes_of(input) : Bytes();
  poison(output);
  return late([this, output, input, tag = std::string(tag), own = std::move(own)] {
    restore(input, own);
    inner_->all_gather(output, input, tag)->wait();
  });
}

std::shared_ptr<Work> DelayedGroup::broadcast(const at::Tensor& tensor, int root,
                                              std::string_view tag) {
  check_broadcast(tensor, root, size(), place());
  if (rank() != root) poison(tensor);
  return late([this, tensor, root, tag = std::string(tag)] {
    inner_->broadcast(tensor, root, tag)->wait();
  });
}

void DelayedGroup::barrier(std::string_view tag) {
  late([this, tag = std::string(tag)] { inner_->barrier(tag); })->wait();
}

std::unique_ptr<Window> DelayedGroup::make_window(const at::Tensor& own, std::string_view name) {
  std::unique_ptr<Window> made;
  late([&] { made = inner_->make_window(own, name); })->wait();
  struct Delays {
    std::mutex mutex;  // several threads may read at once
    std::mt19937_64 random;
    std::uniform_int_distribution<int64_t> delay;
  };
  auto delays = std::make_shared<Delays>();
  delays->random.seed(random_());
  delays->delay = std::uniform_int_distribution<int64_t>(0, options_.longest.count());
  const auto before = [delays, own](int, const at::Tensor& to, std::string_view) {
    // What the inner window refuses, or reads from itself, stays as it is.
    if (to.defined() && to.is_contiguous() && !overlap(to, own)) poison(to);
    std::chrono::microseconds pause;
    {
      std::lock_guard<std::mutex> lock(delays->mutex);
      pause = std::chrono::microseconds(delays->delay(delays->random));
    }
    std::this_thread::sleep_for(pause);
  };
  return std::make_unique<WatchedWindow>(std::move(made), before);
}

std::shared_ptr<ProcessGroup> DelayedGroup::subgroup(const std::vector<int>& ranks,
                                                     std::string_view name) {
  std::shared_ptr<ProcessGroup> made;
  late([&] { made = inner_->subgroup(ranks, name); })->wait();
  if (made == nullptr) return nullptr;
  DelayOptions options = options_;
  options.seed = random_();
  return std::make_shared<DelayedGroup>(std::move(made), options);
}

}  // namespace tessera::testing
