#include "tessera/core/comm/groups/staged_group.h"

#include <algorithm>
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
  run_staged(collective);
  return queued_work(device_);
}

/// Brings the input to the host, runs the collective there and gives the output back.
void StagedGroup::run_staged(Collective collective) {
  const at::Tensor input = collective.input;
  const at::Tensor output = collective.output;
  const OpTraits traits = traits_of(collective.op);
  const at::Tensor staged =
      stage(std::max(input.numel(), output.numel()), input.scalar_type());  // of the whole
  const auto slice = [&staged](const at::Tensor& part, int number) {
    return staged.narrow(0, number * part.numel(), part.numel());
  };
  const bool is_gather = traits.tensors == OpTraits::Tensors::kGather;
  const bool is_scatter = traits.tensors == OpTraits::Tensors::kScatter;
  collective.input = is_gather ? slice(input, rank()) : staged;
  collective.output = is_scatter ? slice(output, collective.slice) : staged;
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
