#pragma once

#include <functional>
#include <string_view>

#include <c10/core/ScalarType.h>

#include "tessera/state_dict.h"

namespace tessera {

/// Selects what quantize_state() and dequantize_state() convert.
struct EightBitPart {
  /// Parameters whose moments are changed, by name; null: all that have such moments.
  std::function<bool(std::string_view parameter)> parameters = nullptr;
  /// Groups whose algorithm is renamed, "defaults" or OptimizerGroup::name; null: all of AdamW and
  /// Lion, or of AdamW8bit and Lion8bit.
  std::function<bool(std::string_view group)> groups = nullptr;
  /// The dtype of the moments that dequantize_state() makes: the masters' dtype, kFloat or kDouble.
  c10::ScalarType dtype = c10::kFloat;
};

/// Converts the state of a run of AdamW or Lion to one that AdamW8bitOptions and Lion8bitOptions
/// continue. For each parameter exp_avg becomes exp_avg_codes (uint8, of its shape) and
/// exp_avg_scales (fp32, one per 64 elements in memory order), and exp_avg_sq likewise; the names
/// of algorithms change; everything else is kept. Moments are rounded to the nearest codes
/// (docs/optimizers.md). Local; under StateScope::kSharded each rank converts its part. Takes
/// memory for the codes. Throws c10::Error, naming the entry: a moment that is neither fp32 nor
/// fp64 or is malformed, a piece that begins or ends inside a block (what state_dict() gives does
/// not), AMSGrad's maxima, which have no 8-bit form.
StateDict quantize_state(StateDict state, const EightBitPart& part = {});

/// The reverse. Moments are exactly those that the 8-bit run works with. quantize_state() of the
/// result rounds once more: a block whose largest magnitude is negative gets another scale. Local.
/// Throws c10::Error, naming the entry: codes without scales for all their blocks, malformed
/// entries, another `dtype`.
StateDict dequantize_state(StateDict state, const EightBitPart& part = {});

}  // namespace tessera
