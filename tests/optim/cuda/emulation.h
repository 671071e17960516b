#pragma once

#include <cstdint>
#include <vector>

#include "tessera/core/numbers/exact_digits.h"
#include "tessera/optim/cuda/gradient_bodies.h"
#include "tessera/optim/cuda/walk.h"

// The launches of libtessera_cuda.so on the CPU: the same bodies, one "thread" after the other.
namespace tessera::internal::cuda {

/// Calls body(worker) for all workers, the last first: no kernel may rely on an order.
template <typename Body>
void run_workers(int64_t count, const Body& body) {
  for (int64_t i = count; i-- > 0;) body(Worker{i, count});
}

/// The eight threads that a warp runs in parallel.
struct SerialLanes {
  template <typename Gradient>
  double sum(const Gradient* block, int numel) const {
    double lanes[kSquareLanes];
    for (int lane = 0; lane < kSquareLanes; ++lane) lanes[lane] = square_lane(block, numel, lane);
    return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) +
           ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
  }
  bool leads() const { return true; }
};

struct PlainWords {
  std::vector<int64_t> words = std::vector<int64_t>(kExactWords, 0);
  void add(size_t word, int64_t amount) { words[word] += amount; }
};

/// Numbers of blocks and threads that a test "launches": one of each, odd numbers, more than the
/// work needs.
struct Launch {
  int64_t blocks;
  int64_t threads;
};
inline constexpr Launch kLaunches[] = {{1, 1}, {1, 3}, {3, 32}, {7, 256}, {64, 5}};

}  // namespace tessera::internal::cuda
