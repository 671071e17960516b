#pragma once

#include <cstdint>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

namespace tessera::internal {

/// Which of its arguments an operator writes, and whether it only makes views: what its schema
/// says, and writes that the schema of some operators hides.
struct OperatorTraits {
  static constexpr uint8_t kAlways = 255;

  bool makes_views = false;     // all results are views, and the operator itself reads nothing
  uint64_t written_inputs = 0;  // a bit per argument; arguments after the first 64 count as read
  uint64_t statistics = 0;      // a bit per argument that holds running statistics
  // The index of the argument that says whether the call writes statistics; kAlways: every call
  // does.
  uint8_t when = kAlways;

  /// Returns which arguments an operator's call writes, a bit per argument. `inputs`: the
  /// arguments.
  uint64_t written_by(c10::ArrayRef<const c10::IValue> inputs) const {
    if (statistics == 0) return written_inputs;
    const bool writes =
        when == kAlways || when >= inputs.size() || !inputs[when].isBool() || inputs[when].toBool();
    return writes ? written_inputs | statistics : written_inputs;
  }
};

/// Return the traits of a registered operator, or of the operator that LibTorch records. A thread
/// keeps the traits of the operators that it ran lately, and finds them by the address of the
/// operator's name, which stays the same while the operator is registered.
OperatorTraits traits_of(const c10::FunctionSchema& schema);
OperatorTraits traits_of(const at::RecordFunction& function);

}  // namespace tessera::internal
