#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

namespace tessera::internal {

/// Records the order in which units are used and predicts the next one: the unit that followed the
/// n-th use of a unit in a phase last time is expected to follow it again. So a module that is used
/// twice has two successors, and predictions are right again soon after a different branch. A wrong
/// prediction costs one unused gather, never correctness.
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
