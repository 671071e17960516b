#include <algorithm>
#include <vector>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/kernels/reduce_kernels.h"
#include "tessera/core/comm/shm/transfer.h"
#include "tessera/core/numbers/round_up.h"

namespace tessera::internal::shm {
namespace {

// Slices of a reduction begin at multiples of this, so that ranks write to different cache lines.
constexpr int64_t kSliceMultiple = 64;

// Results of this size or more are written past the caches, because no core's own cache holds them,
// and training uses them only after the whole backward pass.
constexpr int64_t kStreamedBytes = int64_t{1} << 20;

/// The part of [0, numel) that one rank reduces for all ranks.
struct Slice {
  int64_t begin;
  int64_t numel;
};

Slice slice_of(int64_t numel, int size, int rank) {
  const int64_t stride = round_up((numel + size - 1) / size, kSliceMultiple);
  const int64_t begin = std::min(stride * rank, numel);
  return {begin, std::min(stride, numel - begin)};
}

/// Carries out all_reduce and reduce. Each rank reduces one slice, even if only a root gets the
/// result.
class ReductionInPlace final : public ChunkedTransfer {
 public:
  ReductionInPlace(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().output.numel(), /*places=*/1),
        own_(data_of(collective().output)),
        root_(collective().op == Op::kReduce ? collective().peer : -1) {}

 private:
  void take(int64_t begin, int64_t count) override {
    const Slice slice = slice_of(count, size(), rank());
    if (slice.numel == 0) return;
    std::vector<char*>& sources = link_.sources();
    for (int peer = 0; peer < size(); ++peer) {
      const int64_t offset = is_staged(peer) ? slice.begin : begin + slice.begin;
      sources[static_cast<size_t>(peer)] = source_of(peer) + bytes(offset);
    }
    char* const* const targets = root_ < 0 ? sources.data() : &sources[static_cast<size_t>(root_)];
    kernels::reduce(collective().output.scalar_type(), collective().reduce, sources.data(), size(),
                    targets, root_ < 0 ? size() : 1, slice.numel, kernels::Stores::kCached,
                    collective().divisor, collective().order);
  }

  void bring_back(int64_t begin, int64_t count) override {
    if (root_ >= 0 && root_ != rank()) return;
    copy_bytes(own_ + bytes(begin), link_.staging(), bytes(count));
  }

  char* const own_;
  const int root_;
};

class ReduceScatter final : public ChunkedTransfer {
 public:
  ReduceScatter(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().output.numel(), /*places=*/link.size()),
        own_(data_of(collective().input)),
        target_(data_of(collective().output)),
        slice_(collective().slice) {}

 private:
  // Staged inputs are laid out as [slice][chunk]. A rank does not stage the slice that it takes
  // itself, but reads it in place.
  void stage(int64_t begin, int64_t count) override {
    for (int slice = 0; slice < size(); ++slice) {
      if (slice == slice_) continue;
      copy_bytes(link_.staging() + bytes(slice * chunk_), own_ + bytes(slice * numel_ + begin),
                 bytes(count));
    }
  }

  void take(int64_t begin, int64_t count) override {
    std::vector<char*>& sources = link_.sources();
    for (int peer = 0; peer < size(); ++peer) {
      char*& source = sources[static_cast<size_t>(peer)];
      if (peer == rank()) {
        source = own_ + bytes(slice_ * numel_ + begin);
      } else {
        source =
            source_of(peer) + bytes(is_staged(peer) ? slice_ * chunk_ : slice_ * numel_ + begin);
      }
    }
    const bool is_in_place = target_ == own_ + bytes(slice_ * numel_);
    const kernels::Stores stores = !is_in_place && bytes(numel_) >= kStreamedBytes
                                       ? kernels::Stores::kStreaming
                                       : kernels::Stores::kCached;
    char* const block = target_ + bytes(begin);
    kernels::reduce(collective().input.scalar_type(), collective().reduce, sources.data(), size(),
                    &block, 1, count, stores, collective().divisor, collective().order);
  }

  char* const own_;
  char* const target_;
  const int slice_;
};

}  // namespace

std::unique_ptr<Transfer> make_reduction(Link& link, const Call& call) {
  if (call.collective().op == Op::kReduceScatter) {
    return std::make_unique<ReduceScatter>(link, call);
  }
  return std::make_unique<ReductionInPlace>(link, call);
}

}  // namespace tessera::internal::shm
