#include "tessera/core/comm/shm/move_algorithms.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/groups/host_memory.h"

namespace tessera::internal::shm {
namespace {

/// How many elements each rank gives each rank.
class Counts {
 public:
  /// Equal parts.
  Counts(int size, int64_t numel) : size_(size), of_(size * size, numel) {}

  int64_t& of(int giver, int taker) { return of_[giver * size_ + taker]; }
  int64_t of(int giver, int taker) const { return of_[giver * size_ + taker]; }
  int64_t largest() const { return *std::max_element(of_.begin(), of_.end()); }
  /// Where in a giver's input the part for a rank begins.
  int64_t begin_in_input(int giver, int taker) const {
    const auto first = of_.begin() + giver * size_;
    return std::accumulate(first, first + taker, int64_t{0});
  }
  int64_t begin_in_output(int taker, int giver) const {
    int64_t begin = 0;
    for (int rank = 0; rank < giver; ++rank) begin += of(rank, taker);
    return begin;
  }

 private:
  const int size_;
  std::vector<int64_t> of_;
};

/// Of [begin, begin + count), what lies in [0, numel).
int64_t clamped(int64_t numel, int64_t begin, int64_t count) {
  return std::clamp<int64_t>(numel - begin, 0, count);
}

/// All ranks see all counts, so all find the same difference.
Counts exchange_counts(Exchange& exchange, const Collective& collective) {
  const int size = exchange.size();
  const at::Tensor own = exchange.allocate(2 * size, at::kLong);
  auto* words = own.mutable_data_ptr<int64_t>();
  std::copy(collective.input_counts.begin(), collective.input_counts.end(), words);
  std::copy(collective.output_counts.begin(), collective.output_counts.end(), words + size);
  Counts given(size, 0);
  Counts expected(size, 0);
  exchange.in_chunks(
      exchange.call_of(collective, own), 1, 1, [](int64_t, int64_t) {},
      [&](int64_t, int64_t) {
        for (int rank = 0; rank < size; ++rank) {
          const auto* posted = reinterpret_cast<const int64_t*>(exchange.source_of(rank));
          for (int other = 0; other < size; ++other) {
            given.of(rank, other) = posted[other];
            expected.of(other, rank) = posted[size + other];
          }
        }
        exchange.phase();
      });
  for (int giver = 0; giver < size; ++giver) {
    for (int taker = 0; taker < size; ++taker) {
      if (given.of(giver, taker) == expected.of(giver, taker)) continue;
      exchange.fail(count_mismatch(exchange.name_of(giver), given.of(giver, taker),
                                   exchange.name_of(taker), expected.of(giver, taker),
                                   collective.tag));
    }
  }
  return given;
}

}  // namespace

void gather(Exchange& exchange, const Collective& collective) {
  const at::Tensor& input = collective.input;
  const bool is_root = exchange.rank() == collective.peer;
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t numel = input.numel();
  char* const own = data_of(input);
  char* const target = is_root ? data_of(collective.output) : nullptr;
  const CallDescriptor call = exchange.call_of(collective, input);
  const auto stage = [&](int64_t begin, int64_t count) {
    copy_bytes(exchange.staging(), own + begin * element, count * element);
  };
  exchange.in_chunks(
      call, numel, Exchange::kStagingBytes / element, stage, [&](int64_t begin, int64_t count) {
        for (int peer = 0; is_root && peer < exchange.size(); ++peer) {
          const int64_t offset = exchange.is_staged(peer) ? 0 : begin;
          const char* const from = peer == exchange.rank()
                                       ? own + begin * element
                                       : exchange.source_of(peer) + offset * element;
          copy_bytes(target + (peer * numel + begin) * element, from, count * element);
        }
        exchange.phase();
      });
}

void scatter(Exchange& exchange, const Collective& collective) {
  const at::Tensor& output = collective.output;
  const int root = collective.peer;
  const int rank = exchange.rank();
  const auto element = static_cast<int64_t>(output.element_size());
  const int64_t numel = output.numel();
  const int64_t chunk = std::max<int64_t>(Exchange::kStagingBytes / element / exchange.size(), 1);
  char* const target = data_of(output);
  char* const own = rank == root ? data_of(collective.input) : nullptr;
  const CallDescriptor call =
      rank == root ? exchange.call_of(collective, collective.input) : exchange.call_of(collective);
  // Staged as [slice][chunk].
  const auto stage = [&](int64_t begin, int64_t count) {
    for (int slice = 0; slice < exchange.size(); ++slice) {
      if (slice == root) continue;
      copy_bytes(exchange.staging() + slice * chunk * element,
                 own + (slice * numel + begin) * element, count * element);
    }
  };
  exchange.in_chunks(call, numel, chunk, stage, [&](int64_t begin, int64_t count) {
    const int64_t in_whole = (rank * numel + begin) * element;
    const char* const from =
        rank == root ? own + in_whole
                     : exchange.source_of(root) +
                           (exchange.is_staged(root) ? rank * chunk * element : in_whole);
    copy_bytes(target + begin * element, from, count * element);
    exchange.phase();
  });
}

void all_to_all(Exchange& exchange, const Collective& collective) {
  const at::Tensor& input = collective.input;
  const int size = exchange.size();
  const int rank = exchange.rank();
  const Counts counts = collective.input_counts.empty() ? Counts(size, input.numel() / size)
                                                        : exchange_counts(exchange, collective);
  const auto element = static_cast<int64_t>(input.element_size());
  const int64_t chunk = std::max<int64_t>(Exchange::kStagingBytes / element / size, 1);
  char* const own = data_of(input);
  char* const target = data_of(collective.output);
  const CallDescriptor call = exchange.call_of(collective, input);
  // Staged as [slice][chunk].
  const auto stage = [&](int64_t begin, int64_t count) {
    for (int taker = 0; taker < size; ++taker) {
      if (taker == rank) continue;
      copy_bytes(exchange.staging() + taker * chunk * element,
                 own + (counts.begin_in_input(rank, taker) + begin) * element,
                 clamped(counts.of(rank, taker), begin, count) * element);
    }
  };
  exchange.in_chunks(call, counts.largest(), chunk, stage, [&](int64_t begin, int64_t count) {
    for (int giver = 0; giver < size; ++giver) {
      const int64_t part = clamped(counts.of(giver, rank), begin, count);
      if (part == 0) continue;
      const int64_t in_input = (counts.begin_in_input(giver, rank) + begin) * element;
      const char* from = own + in_input;
      if (giver != rank) {
        from = exchange.source_of(giver) +
               (exchange.is_staged(giver) ? rank * chunk * element : in_input);
      }
      copy_bytes(target + (counts.begin_in_output(rank, giver) + begin) * element, from,
                 part * element);
    }
    exchange.phase();
  });
}

}  // namespace tessera::internal::shm
