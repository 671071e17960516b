#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tessera/core/comm/nccl/abi.h"

namespace tessera::internal::testing {

/// A place in a window of a communicator.
struct WindowPlace {
  int window = -1;
  ptrdiff_t offset = 0;
  friend bool operator==(const WindowPlace&, const WindowPlace&) = default;
};

/// One rank's arguments of one collective.
struct Part {
  std::string function;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t numel = 0;
  nccl::DataType dtype = nccl::DataType::kUint8;
  nccl::RedOp op = nccl::RedOp::kSum;
  int root = 0;
  bool here = false;
  WindowPlace reached = {};  // of the memory that peers access
  bool is_other_in = false;  // whether the other buffer is in a window
};

/// The ranks of one communicator, threads of this process. Lives as long as anyone uses it.
struct Clique {
  explicit Clique(int count) : size(count), world_ranks(count), finalized(count, false) {
    std::iota(world_ranks.begin(), world_ranks.end(), 0);
  }

  struct Collective {
    std::vector<Part> parts;
    std::vector<int> order;  // of the parts, by rank in the world
    int arrived = 0;
    bool over = false;
  };
  struct Split {
    int arrived = 0;
    std::vector<int> colors, keys;
    std::map<int, std::shared_ptr<Clique>> made;  // by color
    std::map<int, std::vector<int>> members;      // parent ranks by color, ordered by key
  };

  struct WindowOfAll {
    int arrived = 0;
    size_t bytes = 0;
    bool fits = true;
  };

  /// One side of a message.
  struct Transfer {
    int from = 0;
    int to = 0;
    const void* send = nullptr;
    void* receive = nullptr;
    size_t numel = 0;
    nccl::DataType dtype = nccl::DataType::kUint8;
    bool over = false;
  };
  /// Unmatched messages from one rank to another.
  struct Line {
    std::deque<std::shared_ptr<Transfer>> sends, receives;
  };

  const int size;
  std::map<std::pair<int, int>, Line> lines;
  std::vector<WindowOfAll> windows;  // by number
  std::vector<int> world_ranks;      // of its ranks
  int joined = 0;
  bool broken = false;                         // a rank has aborted: its memory may be freed
  std::map<uint64_t, Collective> collectives;  // by number
  std::map<uint64_t, Split> splits;
  std::vector<bool> finalized;
};

/// Whether the parts match. If not, the real library's behaviour is undefined and the fake hangs.
bool fit(const Clique::Collective& collective);

/// Carries out matched messages in order. If sizes differ, the real library's behaviour is
/// undefined and the fake hangs.
void transfer(Clique::Line& line);

/// Computes the collective for all its ranks. The real library promises no order of sums; here sums
/// run in the order of the ranks of the world, whatever the communicator, bf16 and fp16 in fp32 and
/// rounded once. So the bits are those of shm, and engines over both can be compared.
void perform(Clique::Collective& collective);

}  // namespace tessera::internal::testing
