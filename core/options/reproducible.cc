#include "tessera/reproducible.h"

#include <bit>
#include <cmath>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/numbers/number_text.h"
#include "tessera/core/options/option_checks.h"
#include "tessera/core/options/resolved_options.h"
#include "tessera/options.h"

namespace tessera {

std::string_view to_string(Reproducible reproducible) {
  switch (reproducible) {
    case Reproducible::kOneWorldSize:
      return "one world size";
    case Reproducible::kAnyWorldSize:
      return "any world size";
  }
  return "unknown";
}

namespace internal {
namespace {

bool is_power_of_two(double number) {
  int exponent = 0;
  return std::frexp(number, &exponent) == 0.5;
}

/// Returns true if, for every number of ranks, a gradient sum under `precision` is rounded at the
/// same points.
bool keeps_places_of_rounding(const UnitPrecision& precision) {
  const bool is_wide =
      precision.communication == at::kFloat || precision.communication == at::kDouble;
  return is_wide && precision.communication == precision.reduce;
}

/// Refuses Half parameters, and sums that keeps_places_of_rounding() is false for. Reports each of
/// these two problems once, for the first parameter that has it.
void check_precision_of_sums(const Options& options, const ParameterTable& model,
                             const RefuseOption& refuse) {
  bool said_half = false;
  bool said_places = false;
  for (const Parameter& parameter : model) {
    const UnitPrecision precision =
        resolve(parameter.precision(options.precision), parameter.tensor.scalar_type());
    if (precision.parameters == at::kHalf && !std::exchange(said_half, true)) {
      refuse(absl::StrCat(
          "is set, but parameter '", parameter.name,
          "' is Half, whose gradients underflow sooner where losses are divided by more "
          "micro-steps; use BFloat16, or leave the option out"));
    }
    if (!keeps_places_of_rounding(precision) && !std::exchange(said_places, true)) {
      refuse(absl::StrCat(
          "is set, but gradients of parameter '", parameter.name, "' are sent in ",
          c10::toString(precision.communication), " and summed in ",
          c10::toString(precision.reduce),
          ", expected Float or Double for both, because where sums are rounded depends on the "
          "number of ranks; set precision.communication and precision.reduce to Float"));
    }
  }
}

}  // namespace

void check_reproducible(const OptionCase& known, const RefuseOption& refuse) {
  const Options& options = known.options;
  const WorldTraits* const world = known.world;
  if (options.reproducible == Reproducible::kOneWorldSize) return;
  if (world != nullptr && !std::has_single_bit(static_cast<unsigned>(world->size))) {
    refuse(absl::StrCat("is set in a world of ", world->size,
                        " ranks, expected a power of two; start another number of "
                        "ranks, or leave it out"));
  }
  if (world != nullptr && !world->can.tree_sums && world->device.is_cpu()) {
    refuse(absl::StrCat(
        "is set on backend '", world->backend,
        "', whose hosts' sums do not make one tree, expected ranks numbered host by host, a power "
        "of two on each of a power of two of hosts; number them so, or leave it out"));
  }
  const double factor = options.gradient_divide_factor.value_or(1.0);
  if (!is_power_of_two(factor)) {
    refuse(absl::StrCat(
        "is set beside gradient_divide_factor ", number_text(factor),
        ", which rounds sums over ranks; choose a power of two, or leave one of the two out"));
  }
  if (known.model != nullptr) check_precision_of_sums(options, *known.model, refuse);
}

}  // namespace internal
}  // namespace tessera
