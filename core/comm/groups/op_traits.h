#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "tessera/collective.h"

namespace tessera::internal {

/// Properties of an operation that do not depend on the backend.
struct OpTraits {
  /// How the operation's input and output relate on one rank.
  enum class Tensors : uint8_t {
    kNone,
    kInPlace,   ///< one tensor, both input and output
    kScatter,   ///< the output is a slice of the whole input
    kGather,    ///< the input is a slice of the whole output
    kExchange,  ///< input and output have a part for each rank
    kMessage,   ///< one tensor, sent to or received from another rank
  };
  /// What the root does, if there is one.
  enum class Root : uint8_t {
    kNone,
    kGives,  ///< the root alone gives values; the others take them
    kTakes,  ///< the root alone takes the result
  };

  Op op;
  const char* name;
  bool is_collective = false;  ///< ProcessGroup::run() accepts it
  Tensors tensors = Tensors::kNone;
  Root root = Root::kNone;
  bool reduces = false;     ///< combines values by a ReduceOp
  bool is_on_host = false;  ///< its tensors lie on the CPU, whatever the group's device

  /// Returns true if the input of rank `rank` is read.
  constexpr bool gives(int rank, int root_rank) const {
    if (tensors == Tensors::kMessage) return op == Op::kSend;
    return tensors != Tensors::kNone && (root != Root::kGives || rank == root_rank);
  }
  /// Returns true if the output of rank `rank` is written.
  constexpr bool takes(int rank, int root_rank) const {
    if (tensors == Tensors::kNone) return false;
    if (tensors == Tensors::kMessage) return op == Op::kRecv;
    if (root == Root::kGives) return tensors == Tensors::kScatter || rank != root_rank;
    return root == Root::kNone || rank == root_rank;
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
      {Op::kGather, "gather", true, Tensors::kGather, Root::kTakes},
      {Op::kScatter, "scatter", true, Tensors::kScatter, Root::kGives},
      {Op::kAllToAll, "all_to_all", true, Tensors::kExchange},
      {Op::kBarrier, "barrier", true},
      {Op::kSend, "send", true, Tensors::kMessage, Root::kTakes},
      {Op::kRecv, "recv", true, Tensors::kMessage, Root::kGives},
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

/// Returns the row of `op`. For a number that is no operation, returns a row with the name
/// "unknown".
constexpr OpTraits traits_of(Op op) {
  const auto index = static_cast<size_t>(op);
  return index < kOps.size() ? kOps[index] : OpTraits{op, "unknown"};
}

}  // namespace tessera::internal
