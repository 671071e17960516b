#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/options.h"

namespace tessera::internal {

/// A field of Options, for the rules and the comparison that treat all fields alike.
struct OptionField {
  /// Which strategies it means something to; the others refuse it.
  enum class AppliesTo : uint8_t {
    kAll,               ///< but for what a check of its own says
    kSplitParameters,   ///< p > 1
    kWholeParameters,   ///< p = 1
    kSharedParameters,  ///< where ranks that update different slices can have one copy together
    kPooledGradients,   ///< but for g = 1 < o, where each unit has a gradient buffer of its own
  };

  const char* name;
  AppliesTo applies_to;
  std::string (*text)(const Options& options);
  bool is_compared = true;  ///< across ranks
};

/// Why a strategy of these degrees, called `strategy`, would ignore `field`, which is set in
/// `options`; "" if it would not.
std::string ignored(const OptionField& field, const Options& options, const Degrees& degrees,
                    const std::string& strategy);

/// All fields, in the order of Options.
std::span<const OptionField> option_fields();

}  // namespace tessera::internal
