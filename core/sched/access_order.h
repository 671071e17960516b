#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

namespace tessera::internal {

/// Learns in which order units are used and says which one comes next. What followed the n-th use
/// of a unit in a phase last time is expected to follow it again; so a module that is used twice
/// has two successors, and a rank that takes another branch finds the way back by itself. A wrong
/// guess costs one gather that nobody asked for, never correctness.
class AccessOrder {
 public:
  /// What kind of computation uses the units; each has an order of its own.
  enum class Phase : uint8_t { kForward, kForwardWithoutGrad, kBackward };

  /// `unit` is used now, after another one. Returns the unit that is expected next, if any.
  std::optional<size_t> visit(Phase phase, size_t unit);

  /// Uses are counted from the beginning again: a step is over.
  void begin();

 private:
  using Place = std::tuple<Phase, size_t, int64_t>;  // phase, unit, number of its use

  std::map<Place, size_t> next_;
  std::map<std::pair<Phase, size_t>, int64_t> uses_;  // since begin()
  std::optional<Place> last_;
};

}  // namespace tessera::internal
