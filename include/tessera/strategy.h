#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace tessera {

/// How the state of training is spread over ranks. The strategies compute the same parameters, to
/// the bit on CPU; they differ in memory and traffic.
enum class Strategy : uint8_t {
  kDdp,     ///< everything on every rank; gradients are all-reduced
  kZero1,   ///< optimizer state split over ranks
  kZero2,   ///< gradients and optimizer state split over ranks
  kZero3,   ///< parameters, gradients and optimizer state split over ranks ("fsdp")
  kHybrid,  ///< each of the three split over as many ranks as Options::degrees says
};

/// Over how many ranks each kind of state is split. Comments call the three numbers p, g and o, and
/// the number of ranks N. p divides g, g divides o, and o divides N. A strategy is a choice of
/// these three numbers (docs/strategies.md).
struct Degrees {
  int parameters = 1;
  int gradients = 1;
  int optimizer = 1;
  friend bool operator==(const Degrees&, const Degrees&) = default;
};

/// Returns true if ranks keep partial sums between the micro-steps of a step: 1 < g < o. Each then
/// holds its gradient slice summed over g ranks only, and the N / g sums of a slice are added once
/// per step.
bool keeps_partial_sums(const Degrees& degrees);

/// Returns true if a rank keeps whole gradient buffers, one per unit, from micro-step to
/// micro-step. It does if gradients are not split, and the rank updates only a slice: g = 1 < o
/// (zero1).
bool keeps_gradient_buffers(const Degrees& degrees);

/// Returns true if ranks of one host that update different slices can share one copy of the
/// parameters: p = 1 or p = o, and o > 1.
bool can_share_parameters(const Degrees& degrees);

/// One row of the table of strategies, which flags, help texts and messages use.
struct StrategyName {
  Strategy strategy;
  std::string_view name;   ///< what to_string prints and flags take
  std::string_view alias;  ///< a second spelling that flags take, or empty
  std::string_view summary;
};

/// Returns all strategies, in the order of the enum.
const std::vector<StrategyName>& strategy_names();

std::string_view to_string(Strategy strategy);

/// Reads "ddp", "zero1", "zero2", "zero3", "fsdp" or "hybrid"; anything else is an error that lists
/// them.
absl::StatusOr<Strategy> parse_strategy(std::string_view text);

/// Makes ABSL_FLAG(tessera::Strategy, ...) work.
bool AbslParseFlag(absl::string_view text, Strategy* strategy, std::string* error);
std::string AbslUnparseFlag(Strategy strategy);

/// Returns "p,g,o", as flags take it: "2,4,4".
std::string to_string(const Degrees& degrees);
absl::StatusOr<Degrees> parse_degrees(std::string_view text);
bool AbslParseFlag(absl::string_view text, Degrees* degrees, std::string* error);
std::string AbslUnparseFlag(const Degrees& degrees);

}  // namespace tessera
