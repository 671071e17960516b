#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/flat_layout.h"
#include "tessera/parameter_table.h"
#include "tessera/precision.h"

namespace tessera {

/// What a unit is for.
enum class UnitKind : uint8_t {
  kPlain,
  kRoot,    ///< parameters that no block owns: whole from first use to the end of backward
  kFrozen,  ///< frozen parameters, split like the others but without gradients and optimizer state
};

/// One unit: parameters of one dtype that are communicated together.
struct PlannedUnit {
  size_t index = 0;                ///< in its plan
  std::string name;                ///< "bucket 0", "layers.3", ...
  std::vector<size_t> parameters;  ///< indices into the ParameterTable, in buffer order
  /// The place of each of `parameters` in the unit's buffer, in the same order. The layout's dtype
  /// is that of the parameters.
  FlatLayout layout;
  UnitPrecision precision;
  UnitKind kind = UnitKind::kPlain;
};

/// Gives every trainable parameter a unit and a place in that unit. Frozen parameters get a unit
/// and a place, too, if they are split. Fixed when the model is parallelized: moving a parameter
/// later would move optimizer state between ranks. Trainable units come first, frozen ones last.
class UnitPlan {
 public:
  struct Place {
    size_t unit;
    size_t position;  ///< index within PlannedUnit::parameters and its layout
  };

  /// What the constructor makes a unit of.
  struct Membership {
    std::string name;
    std::vector<size_t> parameters;
    UnitKind kind = UnitKind::kPlain;
  };
  /// Makes a unit of each entry of `units`; the entries are in the order in which the first
  /// backward reduces the units. Every trainable parameter must occur exactly once. Frozen
  /// parameters may occur in units of kind kFrozen only, which come last. The parameters of a unit
  /// must have one dtype. TORCH_INTERNAL_ASSERT otherwise: ddp/bucket_rule and fsdp/unit_membership
  /// make no other lists.
  UnitPlan(const ParameterTable& table, std::vector<Membership> units, int slices,
           const Precision& precision = {});

  size_t size() const { return units_.size(); }
  /// Returns the number of units that have gradients. They are units [0, trainable_size()).
  size_t trainable_size() const { return trainable_size_; }
  const PlannedUnit& operator[](size_t unit) const { return units_[unit]; }
  std::vector<PlannedUnit>::const_iterator begin() const { return units_.begin(); }
  std::vector<PlannedUnit>::const_iterator end() const { return units_.end(); }

  /// has_place() returns true if parameter `parameter` of the table is in a unit; every trainable
  /// parameter is. place() returns that unit and the parameter's position in it; it asserts
  /// has_place().
  bool has_place(size_t parameter) const;
  Place place(size_t parameter) const;

  /// Returns true if any parameter of `unit` is used; used[i] != 0 means that parameter i of the
  /// table is used.
  bool is_used(size_t unit, const std::vector<uint8_t>& used) const;

  /// Return the sum of the units' padded sizes, in elements and in bytes. If units differ in dtype,
  /// numel() adds elements of different dtypes.
  int64_t numel() const;
  int64_t bytes() const;

  /// Returns one line per unit (name, dtype, numel, slices, member names) for comparison across
  /// ranks.
  std::vector<std::string> lines(const ParameterTable& table) const;

 private:
  std::vector<PlannedUnit> units_;
  size_t trainable_size_ = 0;
  std::vector<std::ptrdiff_t> unit_of_;  // per table entry; -1 when it has no place
  std::vector<size_t> position_of_;
};

}  // namespace tessera
