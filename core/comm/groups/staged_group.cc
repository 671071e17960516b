#include "tessera/core/comm/groups/staged_group.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/groups/stream_work.h"
#include "tessera/core/device/graph.h"
#include "tessera/core/process/error_text.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

/// Copies take equal shapes.
at::Tensor flat(const at::Tensor& tensor) { return tensor.detach().view({tensor.numel()}); }

}  // namespace

StagedGroup::StagedGroup(std::shared_ptr<ProcessGroup> inner, std::shared_ptr<Device> device)
    : inner_(std::move(inner)), device_(std::move(device)), arrived_(device_->make_event()) {}

/// The others wait for this rank in the middle of a collective, so whatever goes wrong there is
/// everyone's.
std::shared_ptr<Work> StagedGroup::run(const Collective& collective) {
  const OpTraits traits = traits_of(collective.op);
  if (!traits.is_collective) refuse(collective);
  if (traits.is_on_host) {
    return inner_->start_gather_on_host(collective.output, collective.input, collective.tag);
  }
  const std::string tag(collective.tag);
  TORCH_CHECK(!is_capturing(), "[comm] ", traits.name, " '", tag,
              "': is being captured into a CUDA graph, expected it outside, as the host takes part"
              " in it; end the capture before it");
  if (collective.after != nullptr) collective.after->wait();
  try {
    return take_part(collective);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string cause = absl::StrCat("rank ", rank(), " failed: ", error_text(error));
    inner_->abort(cause);
    throw CommError({traits.name, std::string(name()), -1, rank(), tag}, cause);
  }
}

std::shared_ptr<Work> StagedGroup::take_part(const Collective& collective) {
  if (traits_of(collective.op).tensors == OpTraits::Tensors::kNone) {  // a barrier
    await_stream();
    return inner_->run(collective);
  }
  switch (traits_of(collective.op).tensors) {
    case OpTraits::Tensors::kMessage:
      return run_message(collective);
    case OpTraits::Tensors::kExchange:
      exchange_staged(collective);
      break;
    default:
      run_staged(collective);
  }
  return queued_work(device_);
}

/// What a receive brings is on the host; it goes to the device in wait(), behind what the stream
/// that is current then holds.
class StagedGroup::Receive final : public Work {
 public:
  Receive(std::shared_ptr<Work> inner, std::shared_ptr<Device> device, at::Tensor to,
          at::Tensor staged)
      : inner_(std::move(inner)),
        device_(std::move(device)),
        to_(std::move(to)),
        staged_(std::move(staged)) {}

  bool is_completed() override { return inner_->is_completed(); }

  void wait() override {
    inner_->wait();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (given_ == nullptr) {
      if (to_.numel() > 0) device_->current_stream()->copy(flat(to_), staged_);
      given_ = queued_work(device_);
    }
    given_->wait();
  }

  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  const std::shared_ptr<Device> device_;
  const at::Tensor to_;
  const at::Tensor staged_;
  std::mutex mutex_;
  std::shared_ptr<Work> given_;
};

std::shared_ptr<Work> StagedGroup::run_message(Collective message) {
  const at::Tensor tensor = message.output;
  const at::Tensor staged = stage(tensor.numel(), tensor.scalar_type());
  message.input = message.output = staged;
  if (message.op == Op::kSend) {
    bring(staged, tensor);
    return inner_->run(message);
  }
  return std::make_shared<Receive>(inner_->run(message), device_, tensor, staged);
}

void StagedGroup::exchange_staged(Collective collective) {
  const at::Tensor input = collective.input;
  const at::Tensor output = collective.output;
  collective.input = stage(input.numel(), input.scalar_type());
  collective.output = stage(output.numel(), output.scalar_type());
  bring(collective.input, input);
  inner_->run(collective)->wait();
  give(output, collective.output);
}

/// Brings the input to the host, runs the collective there and gives the output back.
void StagedGroup::run_staged(Collective collective) {
  const at::Tensor input = collective.input;
  const at::Tensor output = collective.output;
  const OpTraits traits = traits_of(collective.op);
  const auto numel_of = [](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.numel() : int64_t{0};
  };
  const at::Tensor& here = input.defined() ? input : output;
  const at::Tensor staged = stage(std::max({numel_of(input), numel_of(output)}),
                                  here.scalar_type());  // of the whole, where it is
  const auto slice = [&staged](const at::Tensor& part, int number) {
    return staged.narrow(0, number * part.numel(), part.numel());
  };
  const bool is_gather = traits.tensors == OpTraits::Tensors::kGather;
  const bool is_scatter = traits.tensors == OpTraits::Tensors::kScatter;
  // Without the whole, a gather's input or a scatter's output is all there is.
  const bool has_whole = input.defined() && output.defined();
  const int own = has_whole ? (is_gather ? rank() : collective.slice) : 0;
  if (input.defined()) collective.input = is_gather ? slice(input, own) : staged;
  if (output.defined()) collective.output = is_scatter ? slice(output, own) : staged;
  if (traits.gives(rank(), collective.peer)) bring(collective.input, input);
  inner_->run(collective)->wait();
  if (traits.takes(rank(), collective.peer)) give(output, collective.output);
}

/// Copies from it may be in flight when it is dropped: it is used again when they are over.
at::Tensor StagedGroup::stage(int64_t numel, at::ScalarType dtype) {
  return device_->allocate_on_host(numel, dtype);
}

void StagedGroup::await_stream() {
  device_->current_stream()->record(*arrived_);
  arrived_->synchronize();
}

void StagedGroup::bring(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() > 0) device_->current_stream()->copy(to, flat(from));
  await_stream();
}

void StagedGroup::give(const at::Tensor& to, const at::Tensor& from) {
  if (from.numel() > 0) device_->current_stream()->copy(flat(to), from);
}

at::Tensor StagedGroup::allocate(int64_t numel, at::ScalarType dtype) {
  check_allocate(numel, dtype);
  return device_->allocate(numel, dtype);
}

std::shared_ptr<ProcessGroup> StagedGroup::subgroup(const std::vector<int>& ranks,
                                                    std::string_view name) {
  auto made = inner_->subgroup(ranks, name);
  if (made == nullptr) return nullptr;
  return std::make_shared<StagedGroup>(std::move(made), device_);
}

}  // namespace tessera::internal
