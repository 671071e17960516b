#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>

namespace tessera::internal {

/// Records the order in which units are used. After the n-th use of a unit in a phase, predicts the
/// unit that came next in the last step in which this unit had an n-th use. So a module that is
/// used twice has two successors. After a forward that took another branch, predictions are soon
/// right again. A wrong prediction costs one unused gather and does not affect results.
class AccessOrder {
 public:
  /// The kind of computation that uses the units; each has its own order.
  enum class Phase : uint8_t { kForward, kForwardWithoutGrad, kBackward };

  /// Notes that `unit` is used now. Returns the predicted next unit, if any.
  std::optional<size_t> visit(Phase phase, size_t unit);

  /// Resets the counts of uses, because a step has ended.
  void begin();

 private:
  using Place = std::tuple<Phase, size_t, int64_t>;  // phase, unit, count of its earlier uses

  std::map<Place, size_t> next_;
  std::map<std::pair<Phase, size_t>, int64_t> uses_;  // number of uses since begin()
  std::optional<Place> last_;
};

}  // namespace tessera::internal
