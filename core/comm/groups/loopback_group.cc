#include "tessera/core/comm/groups/loopback_group.h"

#include <cstring>
#include <mutex>
#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/groups/remote_memory.h"
#include "tessera/core/comm/groups/works.h"
#include "tessera/core/memory/private_memory.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"

namespace tessera::internal {

struct LoopbackGroup::World {
  const Origin origin;
  std::mutex mutex;
  std::optional<std::string> cause;  // the first failure's cause

  void fail(std::string_view text) {
    const std::lock_guard<std::mutex> lock(mutex);
    if (!cause.has_value()) cause = std::string(text);
  }

  std::optional<std::string> failure() {
    if (!origin.is_here()) return origin.fork_error("rank 0");
    const std::lock_guard<std::mutex> lock(mutex);
    return cause;
  }

  void throw_if_failed(const char* op, const std::string& group, int64_t sequence,
                       std::string_view tag) {
    const std::optional<std::string> why = failure();
    if (why.has_value()) throw CommError({op, group, sequence, 0, std::string(tag)}, *why);
  }
};

/// The only rank's part of a window.
class LoopbackGroup::OwnMemory final : public RemoteMemory {
 public:
  OwnMemory(std::shared_ptr<World> world, at::Tensor own)
      : world_(std::move(world)), own_(std::move(own)) {}

  std::string failure() const override { return world_->failure().value_or(""); }

  std::shared_ptr<Work> read(int /*rank*/, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view /*tag*/, int64_t /*version*/) override {
    std::memmove(data_of(to), data_of(own_) + begin_bytes, to.nbytes());
    return completed_work();
  }

  int64_t load(int /*rank*/, int64_t begin_bytes) override {
    return load_word(data_of(own_) + begin_bytes);
  }

 private:
  const std::shared_ptr<World> world_;
  const at::Tensor own_;
};

LoopbackGroup::LoopbackGroup(std::string name, std::shared_ptr<World> world,
                             std::shared_ptr<Device> device)
    : name_(std::move(name)),
      world_(world != nullptr ? std::move(world) : std::make_shared<World>()),
      device_(std::move(device)),
      messages_(0, device_,
                [world = world_, group = name_](const std::string& tag, const std::string& cause) {
                  world->fail(cause);
                  world->throw_if_failed("recv", group, -1, tag);
                }) {}

std::shared_ptr<Work> LoopbackGroup::run(const Collective& collective) {
  const OpTraits traits = traits_of(collective.op);
  if (!traits.is_collective) refuse(collective);
  if (traits.tensors == OpTraits::Tensors::kMessage) {
    world_->throw_if_failed(traits.name, name_, -1, collective.tag);
    return messages_.run(collective);
  }
  world_->throw_if_failed(traits.name, name_, sequence_++, collective.tag);
  if (collective.after != nullptr) collective.after->wait();
  if (traits.tensors == OpTraits::Tensors::kNone) return completed_work();
  if (collective.input_counts != collective.output_counts) {
    world_->fail(count_mismatch("rank 0", collective.input_counts[0], "rank 0",
                                collective.output_counts[0], collective.tag));
    world_->throw_if_failed(traits.name, name_, sequence_ - 1, collective.tag);
  }
  queue_copy(traits.is_on_host ? nullptr : device_.get(), collective.output, collective.input);
  if (collective.divisor != 0.0) {
    const at::NoGradGuard no_grad;
    collective.output.detach().div_(collective.divisor);
  }
  return traits.is_on_host ? completed_work() : queued_work(device_);
}

at::Tensor LoopbackGroup::allocate(int64_t numel, at::ScalarType dtype) {
  check_allocate(numel, dtype);
  return device_ != nullptr ? device_->allocate(numel, dtype) : allocate_private(numel, dtype);
}

std::unique_ptr<Window> LoopbackGroup::make_window(const at::Tensor& own, std::string_view name) {
  if (device_ != nullptr) return ProcessGroup::make_window(own, name);
  check_window(own, name);
  world_->throw_if_failed("make_window", name_, sequence_++, name);
  return window_over(std::make_shared<OwnMemory>(world_, own), own, {.group = name_});
}

std::unique_ptr<SharedBuffer> LoopbackGroup::make_shared_buffer(int64_t /*bytes*/,
                                                                std::string_view name) {
  world_->throw_if_failed("make_shared_buffer", name_, sequence_++, name);
  return nullptr;
}

std::shared_ptr<ProcessGroup> LoopbackGroup::subgroup(const std::vector<int>& ranks,
                                                      std::string_view name) {
  check_subgroup(ranks, name, 1, subgroup_names_);
  world_->throw_if_failed("subgroup", name_, sequence_++, name);
  subgroup_names_.insert(std::string(name));
  return std::shared_ptr<LoopbackGroup>(
      new LoopbackGroup(absl::StrCat(name_, "/", std::string(name)), world_, device_));
}

void LoopbackGroup::abort(std::string_view cause) noexcept { world_->fail(cause); }

}  // namespace tessera::internal
