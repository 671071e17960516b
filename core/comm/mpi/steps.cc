#include "tessera/core/comm/mpi/steps.h"

#include <algorithm>
#include <cstring>

#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/kernels/reduce_kernels.h"

namespace tessera::internal::mpi {
namespace {

/// All data is in the envelopes.
class PayloadSteps final : public Steps {
 public:
  explicit PayloadSteps(const StepContext& context) : context_(context) {}

  bool advance(Exchange& /*exchange*/) override {
    const Collective& call = context_.call;
    const OpTraits traits = traits_of(call.op);
    if (!traits.takes(context_.rank, call.peer)) return false;
    char* const output = data_of(call.output);
    if (traits.reduces) {
      reduce(output);
    } else if (call.op == Op::kBroadcast) {
      std::memcpy(output, payload_of(call.peer), static_cast<size_t>(call.output.nbytes()));
    } else {
      const auto bytes = static_cast<size_t>(call.input.nbytes());
      for (int rank = 0; rank < context_.size; ++rank) {
        std::memcpy(output + static_cast<size_t>(rank) * bytes, payload_of(rank), bytes);
      }
    }
    return false;
  }

 private:
  const char* payload_of(int rank) const { return context_.round.of(rank).payload(); }

  void reduce(char* output) const {
    const Collective& call = context_.call;
    const int64_t numel = call.output.numel();
    const int64_t offset =
        call.op == Op::kReduceScatter ? call.slice * numel * call.output.element_size() : 0;
    std::vector<const char*> sources;
    for (int rank = 0; rank < context_.size; ++rank) {
      sources.push_back(payload_of(rank) + offset);
    }
    kernels::reduce(call.output.scalar_type(), call.reduce, sources.data(), context_.size, &output,
                    1, numel, kernels::Stores::kCached, call.divisor, call.order);
  }

  const StepContext context_;
};

}  // namespace

int64_t steps_under_way(int ranks) {
  return std::clamp(kHeldBytes / (Exchange::kUnaskedBytes * ranks), kLeastSteps, kMostSteps);
}

int64_t payload_bytes(const Collective& call) {
  const OpTraits traits = traits_of(call.op);
  const bool has_one =
      traits.reduces || traits.tensors == OpTraits::Tensors::kGather || call.op == Op::kBroadcast;
  if (!has_one) return -1;
  const auto bytes = static_cast<int64_t>(call.input.nbytes());
  return bytes <= static_cast<int64_t>(Envelope::kPayloadBytes) ? bytes : -1;
}

std::unique_ptr<Steps> make_steps(const StepContext& context) {
  const int64_t payload = payload_bytes(context.call);
  const OpTraits traits = traits_of(context.call.op);
  if (payload == 0 || traits.tensors == OpTraits::Tensors::kNone) return nullptr;
  if (payload > 0) return std::make_unique<PayloadSteps>(context);
  return traits.reduces ? make_reduce_steps(context) : make_move_steps(context);
}

}  // namespace tessera::internal::mpi
