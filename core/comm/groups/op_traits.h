#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/collective.h"

namespace tessera::internal {

/// What is true of an operation whatever backend carries it out.
struct OpTraits {
  /// How its tensors relate on one rank.
  enum class Tensors : uint8_t {
    kNone,
    kInPlace,  ///< one, that is both input and output
    kScatter,  ///< the output is a slice of the whole input
    kGather,   ///< the input is a slice of the whole output
  };
  /// Which part the root has, where there is one.
  enum class Root : uint8_t {
    kNone,
    kGives,  ///< it alone gives values; the others take them
    kTakes,  ///< it alone takes the result
  };

  Op op;
  const char* name;
  bool is_collective = false;  ///< ProcessGroup::run() takes it
  Tensors tensors = Tensors::kNone;
  Root root = Root::kNone;
  bool reduces = false;     ///< it combines values, by a ReduceOp
  bool is_on_host = false;  ///< its tensors lie on the CPU wherever the group's lie

  /// Whether what rank `rank` has in the input counts.
  constexpr bool gives(int rank, int root_rank) const {
    return tensors != Tensors::kNone && (root != Root::kGives || rank == root_rank);
  }
  /// Whether the output of rank `rank` is written.
  constexpr bool takes(int rank, int root_rank) const {
    if (tensors == Tensors::kNone) return false;
    return root == Root::kNone || (rank == root_rank) == (root == Root::kTakes);
  }
};

/// One row per operation, in the order of Op.
inline constexpr std::array kOps = [] {
  using Tensors = OpTraits::Tensors;
  using Root = OpTraits::Root;
  return std::to_array<OpTraits>({
      {Op::kAllReduce, "all_reduce", true, Tensors::kInPlace, Root::kNone, /*reduces=*/true},
      {Op::kReduceScatter, "reduce_scatter", true, Tensors::kScatter, Root::kNone, true},
      {Op::kAllGather, "all_gather", true, Tensors::kGather},
      {Op::kBroadcast, "broadcast", true, Tensors::kInPlace, Root::kGives},
      {Op::kReduce, "reduce", true, Tensors::kInPlace, Root::kTakes, true},
      {Op::kBarrier, "barrier", true},
      {Op::kHostGather, "all_gather", true, Tensors::kGather, Root::kNone, false,
       /*is_on_host=*/true},
      {Op::kSubgroup, "subgroup"},
      {Op::kMakeWindow, "make_window"},
      {Op::kSharedBuffer, "make_shared_buffer"},
      {Op::kInit, "init_process_group"},
      {Op::kAllocate, "allocate"},
  });
}();

static_assert([] {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (static_cast<size_t>(kOps[i].op) != i) return false;
  }
  return static_cast<size_t>(Op::kAllocate) + 1 == kOps.size();
}());

/// The row of `op`; of a number that is no operation, as another process may write it, one that
/// says "unknown".
constexpr OpTraits traits_of(Op op) {
  const auto index = static_cast<size_t>(op);
  return index < kOps.size() ? kOps[index] : OpTraits{op, "unknown"};
}

}  // namespace tessera::internal
