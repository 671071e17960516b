#include "tessera/core/comm/shm/algorithms.h"

#include <algorithm>
#include <vector>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/kernels/reduce_kernels.h"
#include "tessera/core/comm/shm/move_algorithms.h"
#include "tessera/core/memory/copy_kernels.h"

namespace tessera::internal::shm {
namespace {

// Slices of a reduction begin at multiples of this, so that ranks write to different cache lines.
constexpr int64_t kSliceMultiple = 64;

// From this size on the result of a reduction is written past the caches: no core's own cache holds
// it, and in training a whole backward passes before it is used.
constexpr int64_t kStreamedBytes = int64_t{1} << 20;

/// The part of [0, numel) that a rank reduces for all.
struct Slice {
  int64_t begin;
  int64_t numel;
};

Slice slice_of(int64_t numel, int size, int rank) {
  const int64_t share = (numel + size - 1) / size;
  const int64_t stride = (share + kSliceMultiple - 1) / kSliceMultiple * kSliceMultiple;
  const int64_t begin = std::min(stride * rank, numel);
  return {begin, std::min(stride, numel - begin)};
}

void stream(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) copy_streaming(to, from, bytes);
}

/// For all ranks, or for a root alone: the ranks share out the work either way.
void reduce_in_place(Exchange& exchange, const Collective& collective) {
  std::vector<char*>& sources = exchange.sources();
  const int size = exchange.size();
  const at::Tensor& tensor = collective.output;
  const auto dtype = tensor.scalar_type();
  const auto element = static_cast<int64_t>(tensor.element_size());
  const double divisor = collective.divisor;
  const SumOrder order = collective.order;
  const bool has_root = collective.op == Op::kReduce;
  const bool receives = !has_root || exchange.rank() == collective.peer;
  char* const* const targets = has_root ? &sources[collective.peer] : sources.data();
  const int target_count = has_root ? 1 : size;
  char* const own = data_of(tensor);
  const CallDescriptor call = exchange.call_of(collective, tensor);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy_bytes(exchange.staging(), own + begin * element, count * element);
  };
  exchange.in_chunks(
      call, tensor.numel(), Exchange::kStagingBytes / element, stage,
      [&](int64_t begin, int64_t count) {
        const Slice slice = slice_of(count, size, exchange.rank());
        if (slice.numel > 0) {
          for (int peer = 0; peer < size; ++peer) {
            const int64_t offset = exchange.is_staged(peer) ? slice.begin : begin + slice.begin;
            sources[peer] = exchange.source_of(peer) + offset * element;
          }
          kernels::reduce(dtype, collective.reduce, sources.data(), size, targets, target_count,
                          slice.numel, kernels::Stores::kCached, divisor, order);
        }
        exchange.phase();
        if (call.staged && receives) {
          copy_bytes(own + begin * element, exchange.staging(), count * element);
        }
      });
}

void reduce_scatter(Exchange& exchange, const Collective& collective) {
  std::vector<char*>& sources = exchange.sources();
  const int size = exchange.size();
  const at::Tensor& output = collective.output;
  const at::Tensor& input = collective.input;
  const int slice = collective.slice;
  const auto dtype = input.scalar_type();
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t numel = output.numel();  // of one slice
  const int64_t chunk = std::max<int64_t>(Exchange::kStagingBytes / element / size, 1);
  char* const own = data_of(input);
  char* const target = data_of(output);
  CallDescriptor call = exchange.call_of(collective, input);
  call.slice = slice;
  const bool is_in_place = target == own + slice * numel * element;
  const kernels::Stores stores = !is_in_place && numel * element >= kStreamedBytes
                                     ? kernels::Stores::kStreaming
                                     : kernels::Stores::kCached;
  // Staged inputs lie as [slice][chunk]; what a rank receives of its own input is read where it is.
  const auto stage = [&](int64_t begin, int64_t count) {
    for (int i = 0; i < size; ++i) {
      if (i == slice) continue;
      copy_bytes(exchange.staging() + i * chunk * element, own + (i * numel + begin) * element,
                 count * element);
    }
  };
  exchange.in_chunks(call, numel, chunk, stage, [&](int64_t begin, int64_t count) {
    for (int peer = 0; peer < size; ++peer) {
      if (peer == exchange.rank()) {
        sources[peer] = own + (slice * numel + begin) * element;
      } else if (exchange.is_staged(peer)) {
        sources[peer] = exchange.source_of(peer) + slice * chunk * element;
      } else {
        sources[peer] = exchange.source_of(peer) + (slice * numel + begin) * element;
      }
    }
    char* const block = target + begin * element;
    kernels::reduce(dtype, collective.reduce, sources.data(), size, &block, 1, count, stores,
                    collective.divisor, collective.order);
    exchange.phase();
  });
}

void all_gather(Exchange& exchange, const Collective& collective) {
  const int size = exchange.size();
  const at::Tensor& output = collective.output;
  const at::Tensor& input = collective.input;
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t numel = input.numel();
  char* const own = data_of(input);
  char* const target = data_of(output);
  const bool is_in_place = own == target + exchange.rank() * numel * element;
  const int64_t copied_bytes = (size - (is_in_place ? 1 : 0)) * numel * element;
  const auto place = streaming_pays(copied_bytes, size) ? &stream : &copy_bytes;
  const CallDescriptor call = exchange.call_of(collective, input);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy_bytes(exchange.staging(), own + begin * element, count * element);
  };
  exchange.in_chunks(call, numel, Exchange::kStagingBytes / element, stage,
                     [&](int64_t begin, int64_t count) {
                       for (int peer = 0; peer < size; ++peer) {
                         char* const to = target + (peer * numel + begin) * element;
                         if (peer == exchange.rank()) {
                           place(to, own + begin * element, count * element);
                         } else {
                           const int64_t offset = exchange.is_staged(peer) ? 0 : begin;
                           place(to, exchange.source_of(peer) + offset * element, count * element);
                         }
                       }
                       exchange.phase();
                     });
}

void broadcast(Exchange& exchange, const Collective& collective) {
  const at::Tensor& tensor = collective.output;
  const int root = collective.peer;
  const auto element = static_cast<int64_t>(tensor.element_size());
  char* const own = data_of(tensor);
  const CallDescriptor call =
      exchange.rank() == root ? exchange.call_of(collective, tensor) : exchange.call_of(collective);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy_bytes(exchange.staging(), own + begin * element, count * element);
  };
  exchange.in_chunks(call, tensor.numel(), Exchange::kStagingBytes / element, stage,
                     [&](int64_t begin, int64_t count) {
                       if (exchange.rank() != root) {
                         const int64_t offset = exchange.is_staged(root) ? 0 : begin;
                         copy_bytes(own + begin * element,
                                    exchange.source_of(root) + offset * element, count * element);
                       }
                       exchange.phase();
                     });
}

void barrier(Exchange& exchange, const Collective& collective) {
  exchange.meet(exchange.call_of(collective));
}

}  // namespace

Algorithm algorithm_of(Op op) {
  switch (op) {
    case Op::kAllReduce:
    case Op::kReduce:
      return reduce_in_place;
    case Op::kReduceScatter:
      return reduce_scatter;
    case Op::kAllGather:
      return all_gather;
    case Op::kBroadcast:
      return broadcast;
    case Op::kGather:
      return gather;
    case Op::kScatter:
      return scatter;
    case Op::kAllToAll:
      return all_to_all;
    case Op::kBarrier:
      return barrier;
    default:
      return nullptr;
  }
}

}  // namespace tessera::internal::shm
