#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/shm/transfer.h"
#include "tessera/core/memory/copy_kernels.h"

namespace tessera::internal::shm {
namespace {

int64_t element_of(const at::Tensor& tensor) { return static_cast<int64_t>(tensor.element_size()); }

/// Elements of a part whose staging area has a place for each of `places` ranks.
int64_t chunk_of(int64_t element, int places) {
  return std::max<int64_t>(Link::kStagingBytes / element / places, 1);
}

void stream(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) copy_streaming(to, from, bytes);
}

/// all_gather and gather.
class Gather final : public ChunkedTransfer {
 public:
  Gather(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().input.numel(),
                        element_of(call.collective().input),
                        chunk_of(element_of(call.collective().input), 1)),
        own_(data_of(collective().input)),
        takes_(collective().op == Op::kAllGather || collective().peer == rank()),
        target_(takes_ ? data_of(collective().output) : nullptr) {}

 private:
  void take(int64_t begin, int64_t count) override {
    if (!takes_) return;
    const bool is_in_place = own_ == target_ + bytes(rank() * numel_);
    const int64_t copied = bytes((size() - (is_in_place ? 1 : 0)) * numel_);
    const bool is_streamed = collective().op == Op::kAllGather && streaming_pays(copied, size());
    const auto copy = is_streamed ? &stream : &copy_bytes;
    for (int peer = 0; peer < size(); ++peer) {
      const char* const from = peer == rank()
                                   ? own_ + bytes(begin)
                                   : source_of(peer) + bytes(is_staged(peer) ? 0 : begin);
      copy(target_ + bytes(peer * numel_ + begin), from, bytes(count));
    }
  }

  char* const own_;
  const bool takes_;
  char* const target_;
};

class Broadcast final : public ChunkedTransfer {
 public:
  Broadcast(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().output.numel(),
                        element_of(call.collective().output),
                        chunk_of(element_of(call.collective().output), 1)),
        own_(data_of(collective().output)) {}

 private:
  void take(int64_t begin, int64_t count) override {
    const int root = collective().peer;
    if (rank() == root) return;
    const int64_t offset = is_staged(root) ? 0 : begin;
    copy_bytes(own_ + bytes(begin), source_of(root) + bytes(offset), bytes(count));
  }

  char* const own_;
};

class Scatter final : public ChunkedTransfer {
 public:
  Scatter(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().output.numel(),
                        element_of(call.collective().output),
                        chunk_of(element_of(call.collective().output), link.size())),
        root_(collective().peer),
        own_(rank() == root_ ? data_of(collective().input) : nullptr),
        target_(data_of(collective().output)) {}

 private:
  // As [slice][chunk].
  void stage(int64_t begin, int64_t count) override {
    for (int slice = 0; slice < size(); ++slice) {
      if (slice == root_) continue;
      copy_bytes(link_.staging() + bytes(slice * chunk_), own_ + bytes(slice * numel_ + begin),
                 bytes(count));
    }
  }

  void take(int64_t begin, int64_t count) override {
    const int64_t in_whole = rank() * numel_ + begin;
    const char* const from =
        rank() == root_ ? own_ + bytes(in_whole)
                        : source_of(root_) + bytes(is_staged(root_) ? rank() * chunk_ : in_whole);
    copy_bytes(target_ + bytes(begin), from, bytes(count));
  }

  const int root_;
  char* const own_;
  char* const target_;
};

/// What each rank gives each rank. Where the ranks say how much that is, each posts a block with
/// its counts, and where its data lies.
class AllToAll final : public ChunkedTransfer {
 public:
  AllToAll(Link& link, const Call& call)
      : ChunkedTransfer(link, call, call.collective().input.numel() / link.size(),
                        element_of(call.collective().input),
                        chunk_of(element_of(call.collective().input), link.size())),
        has_counts_(!collective().input_counts.empty()),
        given_(static_cast<size_t>(size() * size()), numel_),
        own_(data_of(collective().input)),
        target_(data_of(collective().output)) {}

 private:
  struct Block {
    SharedRange data;
    int64_t* counts() { return reinterpret_cast<int64_t*>(this + 1); }
  };

  void fill(PostedCall& posted) override {
    if (!has_counts_) return ChunkedTransfer::fill(posted);
    const std::vector<int64_t>& given = collective().input_counts;
    std::copy(given.begin(), given.end(), given_.begin() + rank() * size());
    numel_ = *std::max_element(given.begin(), given.end());
    block_ = link_.allocate(
        static_cast<int64_t>(sizeof(Block)) + 2 * size() * static_cast<int64_t>(sizeof(int64_t)),
        at::kByte);
    Block& own = *new (data_of(block_)) Block();
    give(collective().input, own.data, posted.is_private);
    std::copy(given.begin(), given.end(), own.counts());
    const std::vector<int64_t>& taken = collective().output_counts;
    std::copy(taken.begin(), taken.end(), own.counts() + size());
    posted.source = *link_.find(data_of(block_), static_cast<int64_t>(block_.nbytes()));
  }

  /// All ranks see all counts, so all find the same difference.
  void begin() override {
    if (!has_counts_) return;
    for (int giver = 0; giver < size(); ++giver) {
      const int64_t* const counts = block_of(giver).counts();
      std::copy(counts, counts + size(), given_.begin() + giver * size());
    }
    for (int giver = 0; giver < size(); ++giver) {
      for (int taker = 0; taker < size(); ++taker) {
        const int64_t expected = block_of(taker).counts()[size() + giver];
        if (given(giver, taker) == expected) continue;
        throw Fault{count_mismatch(link_.name_of(giver), given(giver, taker), link_.name_of(taker),
                                   expected, call_.tag())};
      }
    }
    numel_ = *std::max_element(given_.begin(), given_.end());
  }

  char* source_of(int peer) override {
    return has_counts_ ? link_.resolve(block_of(peer).data) : ChunkedTransfer::source_of(peer);
  }
  Block& block_of(int peer) { return *reinterpret_cast<Block*>(ChunkedTransfer::source_of(peer)); }

  int64_t given(int giver, int taker) const {
    return given_[static_cast<size_t>(giver * size() + taker)];
  }
  /// Where in a giver's input the part for a rank begins.
  int64_t begin_in_input(int giver, int taker) const {
    const auto first = given_.begin() + giver * size();
    return std::accumulate(first, first + taker, int64_t{0});
  }
  int64_t begin_in_output(int giver) const {
    int64_t begin = 0;
    for (int rank = 0; rank < giver; ++rank) begin += given(rank, this->rank());
    return begin;
  }
  /// Of [begin, begin + count), what there is of `numel` elements.
  static int64_t clamped(int64_t numel, int64_t begin, int64_t count) {
    return std::clamp<int64_t>(numel - begin, 0, count);
  }

  // As [slice][chunk].
  void stage(int64_t begin, int64_t count) override {
    for (int taker = 0; taker < size(); ++taker) {
      if (taker == rank()) continue;
      copy_bytes(link_.staging() + bytes(taker * chunk_),
                 own_ + bytes(begin_in_input(rank(), taker) + begin),
                 bytes(clamped(given(rank(), taker), begin, count)));
    }
  }

  void take(int64_t begin, int64_t count) override {
    for (int giver = 0; giver < size(); ++giver) {
      const int64_t part = clamped(given(giver, rank()), begin, count);
      if (part == 0) continue;
      const int64_t in_input = begin_in_input(giver, rank()) + begin;
      const char* from = own_ + bytes(in_input);
      if (giver != rank()) {
        from = source_of(giver) + bytes(is_staged(giver) ? rank() * chunk_ : in_input);
      }
      copy_bytes(target_ + bytes(begin_in_output(giver) + begin), from, bytes(part));
    }
  }

  const bool has_counts_;
  std::vector<int64_t> given_;  // by giver, then taker
  char* const own_;
  char* const target_;
  at::Tensor block_;
};

}  // namespace

std::unique_ptr<ChunkedTransfer> make_move(Link& link, const Call& call) {
  switch (call.collective().op) {
    case Op::kAllGather:
    case Op::kGather:
      return std::make_unique<Gather>(link, call);
    case Op::kBroadcast:
      return std::make_unique<Broadcast>(link, call);
    case Op::kScatter:
      return std::make_unique<Scatter>(link, call);
    case Op::kAllToAll:
      return std::make_unique<AllToAll>(link, call);
    default:
      return nullptr;
  }
}

}  // namespace tessera::internal::shm
