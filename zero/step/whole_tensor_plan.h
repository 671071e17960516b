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

/// How the parameters that are transformed as a whole are divided among ranks with one optimizer
/// slice each: which rank owns which parameter, and where directions and results lie. Pure
/// arithmetic, the same on all ranks.
///
/// Each rank has memory for the directions of its pieces (and for their values if these travel,
/// too), followed by memory for the whole results of the parameters that it owns. Offsets are in
/// bytes and multiples of 64. The memory is equally large on all ranks. A rank that has all slices
/// needs no more than room for its largest parameter. States that owners keep whole have separate
/// memory.
class WholeTensorPlan {
 public:
  /// A parameter of the table, with its properties from WholeTensors.
  struct Parameter {
    size_t parameter;
    int64_t cost;
    int64_t scratch_numel;
    bool travels = true;      ///< to an owner; else only norms are exchanged
    bool has_values = false;  ///< values travel beside directions
    std::vector<WholeState> states = {};
  };
  /// A rank's piece of a parameter.
  struct Piece {
    int rank;
    size_t segment;         ///< index among the segments of its slice of the unit
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
    int owner = 0;  ///< the rank to which it travels
    int64_t numel;
    int64_t result = 0;  ///< its offset in the owner's results
    std::vector<Piece> pieces;
    std::vector<int64_t> states;  ///< offsets of its states in the owner's states

    int64_t bytes(int64_t elements) const {
      return elements * static_cast<int64_t>(c10::elementSize(dtype));
    }
  };

  /// slices[r] is the index, out of slices.size(), of the optimizer slice that rank r has. Owners
  /// are chosen greedily: the costliest parameter goes to the rank with the least cost so far, or
  /// to the lowest of several such ranks.
  WholeTensorPlan(const UnitPlan& plan, const std::vector<Parameter>& parameters,
                  const std::vector<int>& slices);

  /// Returns the entries, in the order of `parameters`.
  const std::vector<Entry>& entries() const { return entries_; }
  int ranks() const { return static_cast<int>(scratch_bytes_.size()); }

  /// Memory for directions that travel, which come first.
  int64_t travelling_bytes() const { return travelling_bytes_; }
  /// Memory for all directions; results follow it. 0 for one rank.
  int64_t results_begin() const { return directions_bytes_; }
  int64_t results_bytes() const { return results_bytes_; }
  /// Memory of a rank that has all slices, for its largest parameter.
  int64_t whole_bytes() const { return whole_bytes_; }
  /// Scratch memory of a rank.
  int64_t scratch_bytes(int rank) const { return scratch_bytes_[static_cast<size_t>(rank)]; }
  /// Memory for the states that a rank keeps whole.
  int64_t state_bytes(int rank) const { return state_bytes_[static_cast<size_t>(rank)]; }
  /// All of a rank's memory, where ranks read each other's memory.
  int64_t bytes(int rank) const {
    return directions_bytes_ + results_bytes_ + whole_bytes_ + scratch_bytes(rank) +
           state_bytes(rank);
  }
  /// Additional memory where ranks cannot read each other's memory.
  int64_t gathered_bytes() const { return ranks() * std::max(travelling_bytes_, results_bytes_); }
  /// Returns the bytes that a rank receives in a step that uses all parameters. For parameters that
  /// it owns, it receives other ranks' pieces of the directions, and of the values if these travel;
  /// for other parameters, its own pieces of the results. More where ranks cannot read each other's
  /// memory.
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
