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
  /// Groups whose algorithm is renamed, by name ("defaults" or OptimizerGroup::name); null: all
  /// groups of AdamW and Lion (in dequantize_state(): of AdamW8bit and Lion8bit).
  std::function<bool(std::string_view group)> groups = nullptr;
  /// The dtype of the moments that dequantize_state() makes: the masters' dtype, kFloat or kDouble.
  c10::ScalarType dtype = c10::kFloat;
};

/// Converts the state of an AdamW or Lion run, so that a run with AdamW8bitOptions or
/// Lion8bitOptions can continue from it. For each parameter exp_avg becomes exp_avg_codes (uint8,
/// of its shape) and exp_avg_scales (fp32, one per 64 elements in memory order), and exp_avg_sq
/// likewise; the names of algorithms change; everything else is kept. Moments are rounded to the
/// nearest codes (docs/optimizers.md). Local; under StateScope::kSharded each rank converts its
/// part. It needs memory for the codes beside `state`. Throws c10::Error that names the entry, if a
/// moment is neither fp32 nor fp64 or is malformed, if a piece begins or ends inside a block
/// (pieces from state_dict() do not), and for AMSGrad's maxima, which have no 8-bit form.
StateDict quantize_state(StateDict state, const EightBitPart& part = {});

/// The reverse of quantize_state(). The result has exactly the moments with which the 8-bit run
/// computes. Quantizing the result may round again: a block in which the element of largest
/// magnitude is negative gets another scale. Local. Throws c10::Error that names the entry, if
/// codes lack the scale of a block, an entry is malformed, or `part.dtype` is neither kFloat nor
/// kDouble.
StateDict dequantize_state(StateDict state, const EightBitPart& part = {});

}  // namespace tessera
