#pragma once

#include "tessera/optim/algorithm/algorithm.h"

namespace tessera::internal {

/// AdamW and Lion with moments in 8 bits, dequantised, updated and quantised block by block in one
/// pass. Masters in fp32 and fp64. Options are tessera::AdamW8bitOptions and Lion8bitOptions.
const Algorithm& adamw8bit_algorithm();
const Algorithm& lion8bit_algorithm();

/// The names that a moment's entries have in a StateDict: `moment` in the masters' dtype, or
/// `codes` and `scales` in 8 bits.
struct MomentNames {
  const char* moment;
  const char* codes;
  const char* scales;
  bool is_signed;
};
inline constexpr MomentNames kFirstMoment = {"exp_avg", "exp_avg_codes", "exp_avg_scales", true};
inline constexpr MomentNames kSecondMoment = {"exp_avg_sq", "exp_avg_sq_codes", "exp_avg_sq_scales",
                                              false};

}  // namespace tessera::internal
