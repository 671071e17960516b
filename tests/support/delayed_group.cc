#include "tessera/tests/support/delayed_group.h"

#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/tests/support/watched_window.h"

namespace tessera::internal::testing {
namespace {

/// All bits set is a NaN in every floating dtype. Writes raw bytes, because an operator would bump
/// version counters.
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
  // Work in flight may wait for a failed rank; joining the lane must not.
  if (in_flight_.load() > 0) inner_->abort("a delayed group was destroyed with work in flight");
}

std::shared_ptr<Work> DelayedGroup::late(std::function<void()> collective) {
  std::uniform_int_distribution<int64_t> delay(0, options_.longest.count());
  const std::chrono::microseconds pause(delay(random_));
  ++in_flight_;
  return lane_.post([this, pause, collective = std::move(collective)] {
    struct End {
      std::atomic<int>& in_flight;
      ~End() { --in_flight; }
    } const end{in_flight_};  // ends before a waiter is notified
    std::this_thread::sleep_for(pause);
    collective();
  });
}

std::shared_ptr<Work> DelayedGroup::run(const Collective& collective) {
  const OpTraits traits = traits_of(collective.op);
  if (traits.is_on_host) return inner_->run(collective);
  // Messages complete in any order, which a lane would undo.
  if (traits.tensors == OpTraits::Tensors::kMessage) return inner_->run(collective);
  if (traits.tensors == OpTraits::Tensors::kNone) return late_barrier(collective);
  const at::Tensor& output = collective.output;
  const bool takes = traits.takes(rank(), collective.peer);
  // A rank's input and output may share memory.
  const bool is_scatter = traits.tensors == OpTraits::Tensors::kScatter;
  const at::Tensor& given = is_scatter ? output : collective.input;
  const bool is_replaced = takes && traits.gives(rank(), collective.peer);
  // If this call continues another one (`after`), the memory belongs to that call until it ends.
  const bool is_own_memory = collective.after == nullptr;
  const bool is_kept = is_own_memory && is_replaced && overlap(output, collective.input);
  auto own = is_kept ? bytes_of(given) : Bytes();
  if (takes && is_own_memory) poison(output);
  return late([this, call = collective, tag = std::string(collective.tag), given,
               own = std::move(own)]() mutable {
    restore(given, own);
    call.tag = tag;
    inner_->run(call)->wait();
  });
}

std::shared_ptr<Work> DelayedGroup::late_barrier(const Collective& barrier) {
  late([&] { inner_->run(barrier)->wait(); })->wait();
  return completed_work();
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
    // Leave `to` as it is if the inner window refuses the read or the rank reads from itself.
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
  late([&] { made = ForwardingGroup::subgroup(ranks, name); })->wait();
  return made;
}

std::shared_ptr<ProcessGroup> DelayedGroup::wrap(std::shared_ptr<ProcessGroup> inner) {
  DelayOptions options = options_;
  options.seed = random_();
  return std::make_shared<DelayedGroup>(std::move(inner), options);
}

}  // namespace tessera::internal::testing
