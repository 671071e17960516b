#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/shm/transfer.h"
#include "tessera/core/memory/copy_kernels.h"

namespace tessera::internal::shm {
namespace {

using Tensors = OpTraits::Tensors;

/// splits_input() returns true if the input has a part for each rank, joins_output() if the output
/// has a part from each rank.
bool splits_input(Tensors tensors) {
  return tensors == Tensors::kScatter || tensors == Tensors::kExchange;
}
bool joins_output(Tensors tensors) {
  return tensors == Tensors::kGather || tensors == Tensors::kExchange;
}

/// Returns how many elements one rank gives another in a call without counts.
int64_t part_numel(const Collective& call, int size) {
  const Tensors tensors = traits_of(call.op).tensors;
  if (tensors == Tensors::kExchange) return call.input.numel() / size;
  return tensors == Tensors::kScatter ? call.output.numel() : call.input.numel();
}

/// Moves the data of all_gather, gather, broadcast, scatter or all_to_all. If the call has counts,
/// each rank posts a Block, which holds its counts and the location of its data.
class Move final : public ChunkedTransfer {
 public:
  Move(Link& link, const Call& call)
      : ChunkedTransfer(link, call, part_numel(call.collective(), link.size()),
                        splits_input(traits_of(call.collective().op).tensors) ? link.size() : 1),
        traits_(traits_of(collective().op)),
        splits_input_(splits_input(traits_.tensors)),
        joins_output_(joins_output(traits_.tensors)),
        has_counts_(!collective().input_counts.empty()),
        given_(has_counts_ ? static_cast<size_t>(size() * size()) : 0),
        own_(data_of(collective().input)),
        target_(traits_.takes(rank(), collective().peer) ? data_of(collective().output) : nullptr) {
  }
  /// Keeps the block if the call was given up, because a peer may still read the counts in it.
  ~Move() override {
    if (block_.defined() && !is_over()) link_.world().progress().keep(block_);
  }

 private:
  struct Block {
    SharedRange data;
    int64_t* counts() { return reinterpret_cast<int64_t*>(this + 1); }
  };

  /// A part that one rank gives another: its first element in the giver's input and in the taker's
  /// output, and its size.
  struct Part {
    int64_t in_input;
    int64_t in_output;
    int64_t numel;

    /// Returns how many of the elements [begin, begin + count) lie inside the part.
    int64_t clamped(int64_t begin, int64_t count) const {
      return std::clamp<int64_t>(numel - begin, 0, count);
    }
  };

  Part part_of(int giver, int taker) const {
    if (!has_counts_) {
      return {splits_input_ ? taker * numel_ : 0, joins_output_ ? giver * numel_ : 0, numel_};
    }
    const auto of_giver = given_.begin() + giver * size();
    int64_t in_output = 0;
    for (int rank = 0; rank < giver; ++rank) in_output += given(rank, taker);
    return {std::accumulate(of_giver, of_giver + taker, int64_t{0}), in_output, of_giver[taker]};
  }
  int64_t given(int giver, int taker) const {
    return given_[static_cast<size_t>(giver * size() + taker)];
  }

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

  /// Compares the counts. All ranks see all counts, so all of them find the same difference.
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

  // If the input has a part for each rank, the staging area is laid out as [part][chunk].
  void stage(int64_t begin, int64_t count) override {
    if (!splits_input_) return ChunkedTransfer::stage(begin, count);
    for (int taker = 0; taker < size(); ++taker) {
      if (taker == rank()) continue;
      const Part part = part_of(rank(), taker);
      copy_bytes(link_.staging() + bytes(taker * chunk_), own_ + bytes(part.in_input + begin),
                 bytes(part.clamped(begin, count)));
    }
  }

  void take(int64_t begin, int64_t count) override {
    if (target_ == nullptr) return;
    const int root = collective().peer;
    const bool is_streamed = this->is_streamed();
    for (int giver = 0; giver < size(); ++giver) {
      if (!traits_.gives(giver, root)) continue;
      const Part part = part_of(giver, rank());
      const int64_t numel = part.clamped(begin, count);
      if (numel == 0) continue;
      const char* from = own_ + bytes(part.in_input + begin);
      if (giver != rank()) {
        const int64_t in_staging = splits_input_ ? rank() * chunk_ : 0;
        from = source_of(giver) + bytes(is_staged(giver) ? in_staging : part.in_input + begin);
      }
      char* const to = target_ + bytes(part.in_output + begin);
      if (is_streamed && to != from) {
        copy_streaming(to, from, bytes(numel));
      } else {
        copy_bytes(to, from, bytes(numel));
      }
    }
  }

  bool is_streamed() const {
    if (collective().op != Op::kAllGather) return false;
    const bool is_in_place = own_ == target_ + bytes(rank() * numel_);
    return streaming_pays(bytes((size() - (is_in_place ? 1 : 0)) * numel_), size());
  }

  const OpTraits traits_;
  const bool splits_input_;
  const bool joins_output_;
  const bool has_counts_;
  // given_[giver * size() + taker]: how many elements `giver` gives `taker`.
  std::vector<int64_t> given_;
  char* const own_;
  char* const target_;
  at::Tensor block_;
};

}  // namespace

std::unique_ptr<Transfer> make_move(Link& link, const Call& call) {
  return std::make_unique<Move>(link, call);
}

}  // namespace tessera::internal::shm
