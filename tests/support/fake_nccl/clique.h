#pragma once

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/core/comm/nccl/abi.h"

namespace tessera::testing {

/// What one rank gave to one collective.
struct Part {
  std::string function;
  const void* send = nullptr;
  void* receive = nullptr;
  size_t numel = 0;
  nccl::DataType dtype = nccl::DataType::kUint8;
  nccl::RedOp op = nccl::RedOp::kSum;  // kSum for a pre-multiplied one
  double factor = 1.0;
  bool is_scaled = false;
  int root = 0;
  bool here = false;
};

/// The ranks of one communicator, threads of this process. Lives as long as anyone works for it.
struct Clique {
  explicit Clique(int count) : size(count), finalized(count, false) {}

  struct Collective {
    std::vector<Part> parts;
    int arrived = 0;
    bool over = false;
  };
  struct Split {
    int arrived = 0;
    std::vector<int> colors, keys;
    std::map<int, std::shared_ptr<Clique>> made;  // by color
    std::map<int, std::vector<int>> members;      // parent ranks by color, ordered by key
  };

  const int size;
  int joined = 0;
  bool broken = false;                         // a rank has aborted: its memory may be gone
  std::map<uint64_t, Collective> collectives;  // by number
  std::map<uint64_t, Split> splits;
  std::vector<bool> finalized;
};

/// Whether the parts fit together; where they do not, the real library's behaviour is undefined and
/// the fake's is to hang.
bool fit(const Clique::Collective& collective);

/// Does what the collective is for, for all its ranks: sums in rank order, bf16 and fp16 in fp32
/// and rounded once.
void perform(Clique::Collective& collective);

}  // namespace tessera::testing
