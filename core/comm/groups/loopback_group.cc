#include "tessera/core/comm/groups/loopback_group.h"

#include <cstring>
#include <mutex>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/groups/stream_work.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

void copy(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() == 0 || to.data_ptr() == from.data_ptr()) return;
  std::memcpy(to.data_ptr(), from.const_data_ptr(), from.nbytes());
}

/// On the host, or queued on the device's current stream.
void move(Device* device, const at::Tensor& to, const at::Tensor& from) {
  if (device == nullptr) return copy(to, from);
  if (from.numel() == 0 || to.data_ptr() == from.data_ptr()) return;
  // Shapes may differ.
  device->current_stream()->copy(to.detach().view({to.numel()}),
                                 from.detach().view({from.numel()}));
}

std::shared_ptr<Work> work_on(const std::shared_ptr<Device>& device) {
  return device == nullptr ? completed_work() : queued_work(device);
}

}  // namespace

struct LoopbackGroup::World {
  const Origin origin;
  std::mutex mutex;
  bool poisoned = false;
  std::string cause;

  void poison(std::string_view text) {
    std::lock_guard<std::mutex> lock(mutex);
    if (poisoned) return;
    poisoned = true;
    cause = std::string(text);
  }

  void throw_if_poisoned(const char* op, const std::string& group, int64_t sequence,
                         std::string_view tag) {
    if (!origin.is_here()) {
      throw CommError({op, group, sequence, 0, std::string(tag)}, origin.fork_error("rank 0"));
    }
    std::lock_guard<std::mutex> lock(mutex);
    if (poisoned) throw CommError({op, group, sequence, 0, std::string(tag)}, cause);
  }
};

/// The window of the only rank.
class LoopbackGroup::OwnWindow final : public Window {
 public:
  OwnWindow(std::shared_ptr<World> world, std::string group, at::Tensor own)
      : world_(std::move(world)), group_(std::move(group)), own_(std::move(own)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t /*version*/) override {
    check_read(rank, begin, to, 1, own_.numel(), own_.scalar_type());
    world_->throw_if_poisoned("read", group_, -1, tag);
    if (to.numel() == 0) return completed_work();
    const auto* from = static_cast<const char*>(own_.const_data_ptr());
    std::memmove(to.data_ptr(), from + begin * to.element_size(), to.nbytes());
    return completed_work();
  }

  int64_t load(int rank, int64_t index) const override {
    check_word(rank, index, 1, own_.numel(), own_.scalar_type());
    return load_word(own_.const_data_ptr<int64_t>() + index);
  }

  void store(int64_t index, int64_t value) override {
    check_word(0, index, 1, own_.numel(), own_.scalar_type());
    store_word(own_.mutable_data_ptr<int64_t>() + index, value);
  }

 private:
  const std::shared_ptr<World> world_;
  const std::string group_;
  const at::Tensor own_;
};

LoopbackGroup::LoopbackGroup(std::string name)
    : LoopbackGroup(std::move(name), std::make_shared<World>(), nullptr) {}

LoopbackGroup::LoopbackGroup(std::shared_ptr<Device> device, std::string name)
    : LoopbackGroup(std::move(name), std::make_shared<World>(), std::move(device)) {}

LoopbackGroup::LoopbackGroup(std::string name, std::shared_ptr<World> world,
                             std::shared_ptr<Device> device)
    : name_(std::move(name)),
      world_(std::move(world)),
      device_(std::move(device)),
      messages_(
          0,
          [device = device_](const at::Tensor& to, const at::Tensor& from) {
            move(device.get(), to, from);
          },
          [device = device_] { return work_on(device); },
          [world = world_, group = name_](Op op, const std::string& tag, const std::string& cause) {
            world->poison(cause);
            world->throw_if_poisoned(to_string(op), group, -1, tag);
          }) {}

void LoopbackGroup::begin(const char* op, std::string_view tag) {
  world_->throw_if_poisoned(op, name_, sequence_++, tag);
}

std::shared_ptr<Work> LoopbackGroup::run_message(const Collective& message) {
  world_->throw_if_poisoned(to_string(message.op), name_, -1, message.tag);
  return message.op == Op::kSend ? messages_.send(message) : messages_.receive(message);
}

std::shared_ptr<Work> LoopbackGroup::run(const Collective& collective) {
  if (traits_of(collective.op).tensors == OpTraits::Tensors::kMessage) {
    return run_message(collective);
  }
  begin(to_string(collective.op), collective.tag);
  if (collective.after != nullptr) collective.after->wait();
  switch (collective.op) {
    case Op::kBarrier:
      return completed_work();
    case Op::kAllReduce:
    case Op::kBroadcast:
    case Op::kReduce:
      break;
    case Op::kAllToAll:
      if (!collective.input_counts.empty()) check_counts(collective);
      [[fallthrough]];
    case Op::kReduceScatter:
    case Op::kAllGather:
    case Op::kGather:
    case Op::kScatter:
      move(device_.get(), collective.output, collective.input);
      break;
    case Op::kHostGather:
      copy(collective.output, collective.input);
      return completed_work();
    default:
      refuse(collective);
  }
  if (collective.divisor != 0.0) {
    const at::NoGradGuard no_grad;
    collective.output.detach().div_(collective.divisor);
  }
  return work_on(device_);
}

void LoopbackGroup::check_counts(const Collective& collective) {
  const int64_t given = collective.input_counts[0];
  const int64_t expected = collective.output_counts[0];
  if (given == expected) return;
  world_->poison(count_mismatch("rank 0", given, "rank 0", expected, collective.tag));
  world_->throw_if_poisoned("all_to_all", name_, sequence_ - 1, collective.tag);
}

at::Tensor LoopbackGroup::allocate(int64_t numel, at::ScalarType dtype) {
  if (device_ == nullptr) return allocate_on_host(numel, dtype);
  check_allocate(numel, dtype);
  return device_->allocate(numel, dtype);
}

std::unique_ptr<Window> LoopbackGroup::make_window(const at::Tensor& own, std::string_view name) {
  if (device_ != nullptr) return ProcessGroup::make_window(own, name);
  check_window(own, name);
  begin("make_window", name);
  return std::make_unique<OwnWindow>(world_, name_, own);
}

std::unique_ptr<SharedBuffer> LoopbackGroup::make_shared_buffer(int64_t /*bytes*/,
                                                                std::string_view name) {
  begin("make_shared_buffer", name);
  return nullptr;
}

std::shared_ptr<ProcessGroup> LoopbackGroup::subgroup(const std::vector<int>& ranks,
                                                      std::string_view name) {
  check_subgroup(ranks, name, 1, subgroup_names_);
  begin("subgroup", name);
  subgroup_names_.insert(std::string(name));
  return std::shared_ptr<LoopbackGroup>(
      new LoopbackGroup(absl::StrCat(name_, "/", std::string(name)), world_, device_));
}

void LoopbackGroup::abort(std::string_view cause) noexcept {
  try {
    world_->poison(cause);
  } catch (...) {  // out of memory while copying the text; there are no other ranks
  }
}

}  // namespace tessera::internal
