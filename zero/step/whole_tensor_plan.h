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

/// How ranks that have one optimizer slice each share out the parameters that are transformed as a
/// whole: who owns which, and where directions and results lie. Pure arithmetic, the same on all of
/// them.
///
/// Each rank has memory for the directions of its pieces (and their values, where these travel,
/// too) and, behind it, for whole results of what it owns; offsets are in bytes and multiples
/// of 64. The memory is as large on each rank as the rank that needs most makes it. A rank that has
/// all slices needs no more than room for its largest parameter. States that owners keep whole lie
/// in memory of their own.
class WholeTensorPlan {
 public:
  /// A parameter of the table, with what WholeTensors says of it.
  struct Parameter {
    size_t parameter;
    int64_t cost;
    int64_t scratch_numel;
    bool travels = true;      ///< to an owner; else only norms are taken
    bool has_values = false;  ///< values travel beside directions
    std::vector<WholeState> states = {};
  };
  /// What one rank has of a parameter.
  struct Piece {
    int rank;
    size_t segment;         ///< index among the segments of its slice of the unit
    Range range;            ///< elements of the parameter, in the order of its memory
    int64_t direction = 0;  ///< where its direction lies
    int64_t values = 0;     ///< where its values do, if they travel
  };
  struct Entry {
    size_t parameter;
    size_t unit;
    c10::ScalarType dtype;
    bool travels;
    bool has_values;
    int owner = 0;  ///< where it travels
    int64_t numel;
    int64_t result = 0;  ///< where it lies with the owner, from results_begin() on
    std::vector<Piece> pieces;
    std::vector<int64_t> states;  ///< where each lies among those of the owner

    int64_t bytes(int64_t elements) const {
      return elements * static_cast<int64_t>(c10::elementSize(dtype));
    }
  };

  /// slices[r]: which slice of the optimizer's, of slices.size(), rank r has. Owners are chosen
  /// greedily: the costliest parameter goes to the rank with the least to do, the first of equals.
  WholeTensorPlan(const UnitPlan& plan, const std::vector<Parameter>& parameters,
                  const std::vector<int>& slices);

  /// In the order of `parameters`.
  const std::vector<Entry>& entries() const { return entries_; }
  int ranks() const { return static_cast<int>(scratch_bytes_.size()); }

  /// Memory for directions that travel, which come first.
  int64_t travelling_bytes() const { return travelling_bytes_; }
  /// Memory for all directions; results begin behind it. 0 for one rank.
  int64_t results_begin() const { return directions_bytes_; }
  int64_t results_bytes() const { return results_bytes_; }
  /// Memory of a rank that has all slices: the largest parameter.
  int64_t whole_bytes() const { return whole_bytes_; }
  /// Scratch memory of a rank.
  int64_t scratch_bytes(int rank) const { return scratch_bytes_[static_cast<size_t>(rank)]; }
  /// Memory for the states that a rank keeps whole.
  int64_t state_bytes(int rank) const { return state_bytes_[static_cast<size_t>(rank)]; }
  /// All of it, where ranks read each other's memory.
  int64_t bytes(int rank) const {
    return directions_bytes_ + results_bytes_ + whole_bytes_ + scratch_bytes(rank) +
           state_bytes(rank);
  }
  /// What ranks that cannot read each other's memory need besides.
  int64_t gathered_bytes() const { return ranks() * std::max(travelling_bytes_, results_bytes_); }
  /// What a rank receives in a step that uses all parameters: others' pieces of the directions, and
  /// of the values where they travel, of what it owns, and its pieces of the results of what others
  /// own. More where ranks cannot read each other's memory.
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
