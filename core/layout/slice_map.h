#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/flat_layout.h"
#include "tessera/strategy.h"

namespace tessera::internal {

/// Returns why `degrees` do not divide `world_size` ranks: "got ..., expected ...; ..."; "" if they
/// do.
std::string problem_of(const Degrees& degrees, int world_size);

/// A rank's slices of every unit under degrees p | g | o and a world of N. Pure arithmetic.
///
/// Note [Slice map]
/// Write rank = a + p*b + g*c + o*d with a < p, b < g/p, c < o/g, d < N/o. The rank has slice a of
/// the parameters (of p), slice a(g/p)+b of the gradients (of g), slice [a(g/p)+b](o/g)+c of the
/// optimizer state (of o), and owns atom {[a(g/p)+b](o/g)+c}(N/o)+d (of N). Each slice lies inside
/// the one before it, and ranks that share one unit's parameters are neighbours:
///   gather   all-gather over the ranks that differ in a only;
///   reduce   reduce-scatter over all N ranks to the atoms, then all-gather over d;
///   update   all-gather over c, then over b, inside the parameter slice.
/// Under ddp and zero1 to zero3 one coordinate equals the rank, and the others are 0: under ddp it
/// is d, under zero1 c, under zero2 b, under zero3 a.
class SliceMap {
 public:
  /// The coordinates of a rank.
  enum class Axis : uint8_t { kParameters, kGradients, kOptimizer, kReplicas };  // a, b, c, d

  /// Throws c10::Error that names the degrees and the world if a degree does not divide the next
  /// one, or the last degree does not divide the world.
  SliceMap(Degrees degrees, int world_size, int rank);

  const Degrees& degrees() const { return degrees_; }
  int world_size() const { return world_size_; }
  int rank() const { return rank_; }

  int coordinate(Axis axis) const;
  /// Returns the number of values of the coordinate: p, g/p, o/g or N/o.
  int extent(Axis axis) const;

  /// Return the indices of this rank's slices. An index is at least 0 and less than the degree; the
  /// index of the atom is less than world_size().
  int parameter_slice() const;
  int gradient_slice() const;
  int optimizer_slice() const;
  int atom() const;

  /// Return this rank's slices of a unit with this layout, as ranges of the unit's elements.
  Range parameters(const FlatLayout& layout) const;
  Range gradients(const FlatLayout& layout) const;
  Range optimizer(const FlatLayout& layout) const;
  Range atom(const FlatLayout& layout) const;

  /// Returns the ranks that differ from this one only in the coordinates `axes`, ascending.
  std::vector<int> peers(const std::vector<Axis>& axes) const;
  /// Returns the colors for split(): for each rank of the world, the lowest of its peers along
  /// `axes`.
  std::vector<int> colors(const std::vector<Axis>& axes) const;

 private:
  int weight(Axis axis) const;

  Degrees degrees_;
  int world_size_;
  int rank_;
};

}  // namespace tessera::internal
