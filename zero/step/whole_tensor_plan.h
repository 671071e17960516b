#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

#include "tessera/flat_layout.h"
#include "tessera/optim/algorithm/whole_state.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// How the parameters that are transformed as a whole are divided among ranks, each of which has
/// one optimizer slice: which rank owns which parameter, and where directions and results lie. Pure
/// arithmetic, the same on all ranks.
///
/// Each rank has memory for the directions of its pieces (and for the pieces' values if values
/// travel, too), followed by memory for the whole results of the parameters that it owns. Offsets
/// are in bytes and multiples of 64. The memory is equally large on all ranks. A rank that has all
/// slices (a group of one) only needs room for its largest parameter, and scratch memory. States
/// that owners keep whole have separate memory.
class WholeTensorPlan {
 public:
  /// A parameter of the table, with its properties from WholeTensors.
  struct Parameter {
    size_t parameter;
    int64_t cost;
    int64_t scratch_numel;
    bool travels = true;      ///< directions travel to an owner; else only norms are exchanged
    bool has_values = false;  ///< values travel beside directions
    std::vector<WholeState> states = {};
  };
  /// A rank's piece of a parameter.
  struct Piece {
    int rank;
    size_t segment;         ///< index among the segments of the rank's slice of the unit
    Range range;            ///< elements of the parameter, in the order of its memory
    int64_t direction = 0;  ///< where its direction lies
    int64_t values = 0;     ///< where its values lie, if they travel
  };
  struct Entry {
    size_t parameter;
    size_t unit;
    c10::ScalarType dtype;
    bool travels;
    bool has_values;
    int owner = 0;  ///< the rank to which its directions travel
    int64_t numel;
    int64_t result = 0;  ///< its offset in the owner's results
    std::vector<Piece> pieces;
    std::vector<int64_t> states;  ///< where each of its states begins in the owner's state memory

    int64_t bytes(int64_t elements) const {
      return elements * static_cast<int64_t>(c10::elementSize(dtype));
    }
  };

  /// There are as many optimizer slices as ranks; slices[r] is the index of the one that rank r
  /// has. Owners are chosen greedily: the costliest parameter goes to the rank with the least cost
  /// so far, or to the lowest of several such ranks.
  WholeTensorPlan(const UnitPlan& plan, const std::vector<Parameter>& parameters,
                  const std::vector<int>& slices);

  /// Returns the entries, in the order of `parameters`.
  const std::vector<Entry>& entries() const { return entries_; }
  int ranks() const { return static_cast<int>(scratch_bytes_.size()); }

  /// Returns how many bytes the directions that travel take. They come first in the memory.
  int64_t travelling_bytes() const { return travelling_bytes_; }
  /// Returns how many bytes all directions take, so the results begin at this offset; 0 if one rank
  /// has all slices.
  int64_t results_begin() const { return directions_bytes_; }
  int64_t results_bytes() const { return results_bytes_; }
  /// Returns the bytes of memory for the largest parameter, on a rank that has all slices; else 0.
  int64_t whole_bytes() const { return whole_bytes_; }
  /// Returns the bytes of scratch memory of a rank.
  int64_t scratch_bytes(int rank) const { return scratch_bytes_[static_cast<size_t>(rank)]; }
  /// Returns the bytes of memory for the states that a rank keeps whole.
  int64_t state_bytes(int rank) const { return state_bytes_[static_cast<size_t>(rank)]; }
  /// Returns how many bytes a rank needs in all if ranks can read each other's memory.
  int64_t bytes(int rank) const {
    return directions_bytes_ + results_bytes_ + whole_bytes_ + scratch_bytes(rank) +
           state_bytes(rank);
  }
  /// Returns how many more bytes a rank needs if ranks cannot read each other's memory.
  int64_t gathered_bytes() const { return ranks() * std::max(travelling_bytes_, results_bytes_); }
  /// Returns the bytes that a rank receives in a step that uses all parameters, where ranks read
  /// each other's memory. For parameters that it owns, it receives other ranks' pieces of the
  /// directions, and of the values if these travel; for other parameters, its own pieces of the
  /// results. Where ranks cannot read each other's memory, they receive more than this.
  int64_t received_bytes(int rank) const;

 private:
  void choose_owners(const std::vector<Parameter>& parameters);
  int64_t place_pieces(const UnitPlan& plan, int rank, int slice, bool travel, int64_t end);
  void place_results();
  void place_states(const std::vector<Parameter>& parameters);

  std::vector<Entry> entries_;
  std::vector<int64_t> scratch_bytes_;  // per rank
  std::vector<int64_t> state_bytes_;    // per rank
  int64_t travelling_bytes_ = 0;
  int64_t directions_bytes_ = 0;
  int64_t results_bytes_ = 0;
  int64_t whole_bytes_ = 0;
};

}  // namespace tessera::internal
