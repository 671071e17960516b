#include "tessera/memory_formula.h"

#include <algorithm>
#include <map>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/partial_state_layout.h"
#include "tessera/core/reduce/tree_accumulator.h"

namespace tessera {
using namespace internal;

namespace {

int64_t bytes_in(const PlannedUnit& unit, c10::ScalarType dtype) {
  return unit.layout.numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

/// Returns how many bytes of the optimizer state `state` a rank keeps for `unit`.
int64_t state_bytes(const PlannedUnit& unit, const KeptState& state, const MemorySetting& setting) {
  const Range slice = unit.layout.part(setting.optimizer_slice, setting.degrees.optimizer);
  std::vector<Segment> segments = unit.layout.segments(slice);
  for (Segment& segment : segments) segment.buffer_offset -= slice.begin;
  const PartialStateLayout partial(segments, slice.numel, [&](size_t parameter) {
    return state.has(unit.parameters[parameter]);
  });
  return state.values_of(partial.numel()) *
         static_cast<int64_t>(c10::elementSize(state.dtype_over(unit.precision.master)));
}

/// The buffers of one pool: one for each unit that uses the pool (`wanted`), but at most `at_most`.
/// Each is as large as the largest unit needs.
struct Buffers {
  int64_t wanted = 0;
  int64_t largest_bytes = 0;
  void add(int64_t bytes) {
    ++wanted;
    largest_bytes = std::max(largest_bytes, bytes);
  }
  int64_t bytes(int64_t at_most) const { return std::min(wanted, at_most) * largest_bytes; }
};
using BuffersByDtype = std::map<c10::ScalarType, Buffers>;

int64_t bytes_of(const BuffersByDtype& by_dtype, int64_t at_most) {
  int64_t sum = 0;
  for (const auto& [dtype, buffers] : by_dtype) sum += buffers.bytes(at_most);
  return sum;
}

void check(const MemorySetting& setting) {
  const Degrees& degrees = setting.degrees;
  TORCH_CHECK(degrees.parameters >= 1 && degrees.gradients >= 1 && degrees.optimizer >= 1,
              "[memory] degrees: got ", degrees.parameters, " | ", degrees.gradients, " | ",
              degrees.optimizer, ", expected at least 1 each");
  TORCH_CHECK(setting.optimizer_slice >= 0 && setting.optimizer_slice < degrees.optimizer,
              "[memory] optimizer_slice: got ", setting.optimizer_slice, ", expected one of 0 to ",
              degrees.optimizer - 1);
  TORCH_CHECK(setting.micro_steps >= 1, "[memory] micro_steps: got ", setting.micro_steps,
              ", expected at least 1");
  TORCH_CHECK(setting.is_split || degrees.parameters == 1, "[memory] is_split: got false with ",
              degrees.parameters, " slices of the parameters, expected true");
  const int after_forward = setting.ranks_after_forward;
  TORCH_CHECK(after_forward >= 0 && after_forward <= degrees.parameters &&
                  (after_forward == 0 || degrees.parameters % after_forward == 0),
              "[memory] ranks_after_forward: got ", after_forward, ", expected a divisor of ",
              degrees.parameters);
}

/// Returns true if the gradients of `unit` are reduced in the buffer that holds the step's sums, so
/// that they need no other buffer.
bool lands_in_sums(const PlannedUnit& unit, const MemorySetting& setting) {
  return !setting.updates_in_backward && setting.degrees.optimizer == 1 &&
         setting.micro_steps == 1 && unit.precision.communication == unit.precision.reduce;
}

int64_t gradient_bytes(const PlannedUnit& unit, const MemorySetting& setting) {
  const Degrees& degrees = setting.degrees;
  const UnitPrecision& precision = unit.precision;
  if (setting.updates_in_backward) return 0;
  if (keeps_gradient_buffers(degrees) && setting.micro_steps == 1 &&
      precision.communication == precision.reduce) {
    return 0;
  }
  if (setting.adds_as_tree) {
    return bytes_in(unit, precision.reduce) / degrees.optimizer *
           partial_sums_of(setting.micro_steps);
  }
  return bytes_in(unit, precision.reduce) /
         (keeps_partial_sums(degrees) ? degrees.gradients : degrees.optimizer);
}

}  // namespace

MemoryBytes memory_formula(const UnitPlan& plan, const MemorySetting& setting) {
  check(setting);
  const Degrees& degrees = setting.degrees;
  const int after_forward = setting.ranks_after_forward;
  const bool stays_whole = degrees.parameters > 1 && after_forward == 1;
  const bool has_second_shard =
      after_forward > 1 && after_forward < degrees.parameters && !setting.is_shared;
  const bool is_offloaded = setting.offload != Offload::kNone;
  const MemoryClass of_shards =
      setting.offload == Offload::kParameters ? MemoryClass::kHost : MemoryClass::kParameters;
  const MemoryClass of_optimizer = is_offloaded ? MemoryClass::kHost : MemoryClass::kOptimizer;
  MemoryBytes bytes;
  bytes[of_optimizer] = setting.whole_tensor_bytes;
  bytes[MemoryClass::kGradients] = setting.comm_hook_bytes;
  bytes[MemoryClass::kOptimizer] += setting.gathered_direction_bytes;
  BuffersByDtype buffers;
  int64_t widened_bytes = 0;
  int64_t rounded_bytes = 0;
  for (const PlannedUnit& unit : plan) {
    const int64_t whole_bytes = unit.layout.bytes();
    bytes[of_shards] += whole_bytes / (setting.is_shared ? degrees.optimizer : degrees.parameters);
    if (has_second_shard) bytes[MemoryClass::kParameters] += whole_bytes / after_forward;
    if (setting.is_split && !setting.is_shared) {
      if (unit.kind == UnitKind::kRoot) {
        bytes[MemoryClass::kRoot] += whole_bytes;
      } else if (stays_whole) {
        bytes[MemoryClass::kUnshardedParameters] += whole_bytes;
      } else {
        buffers[unit.layout.dtype()].add(whole_bytes);
      }
    }
    if (unit.kind == UnitKind::kFrozen) continue;
    const UnitPrecision& precision = unit.precision;
    const int64_t master_bytes = bytes_in(unit, precision.master) / degrees.optimizer;
    if (has_master_copy(precision, setting.offload)) bytes[of_optimizer] += master_bytes;
    for (const KeptState& state : setting.states) {
      bytes[of_optimizer] += state_bytes(unit, state, setting);
    }
    if (setting.has_average) bytes[of_optimizer] += master_bytes;
    if (is_offloaded) {
      bytes[MemoryClass::kHost] += bytes_in(unit, precision.reduce) / degrees.optimizer;
      if (precision.reduce != precision.master) {
        widened_bytes = std::max(widened_bytes, master_bytes);
      }
    }
    if (setting.offload == Offload::kOptimizer && precision.has_masters()) {
      rounded_bytes = std::max(rounded_bytes, whole_bytes / degrees.optimizer);
    }
    bytes[MemoryClass::kGradients] += gradient_bytes(unit, setting);
    if (keeps_gradient_buffers(degrees)) {
      bytes[MemoryClass::kGradientBuffers] += bytes_in(unit, unit.precision.communication);
    }
  }
  bytes[MemoryClass::kUnshardedParameters] += bytes_of(buffers, 2);
  bytes[MemoryClass::kHost] += widened_bytes + 2 * rounded_bytes;
  return bytes;
}

MemoryBytes memory_peak_formula(const UnitPlan& plan, const MemorySetting& setting) {
  MemoryBytes bytes = memory_formula(plan, setting);
  if (keeps_gradient_buffers(setting.degrees)) return bytes;
  BuffersByDtype blocks, roots;  // blocks and roots have separate pools
  // Sizes of the buffers into which gradients are converted for the optimizer. There is one for
  // each dtype of masters, as large as the largest unit with such masters needs.
  std::map<c10::ScalarType, int64_t> converted;
  for (const PlannedUnit& unit : plan) {
    if (unit.kind == UnitKind::kFrozen || lands_in_sums(unit, setting)) continue;
    BuffersByDtype& pool = unit.kind == UnitKind::kRoot ? roots : blocks;
    pool[unit.precision.communication].add(bytes_in(unit, unit.precision.communication));
    if (setting.updates_in_backward && unit.precision.communication != unit.precision.master) {
      int64_t& largest = converted[unit.precision.master];
      largest =
          std::max(largest, bytes_in(unit, unit.precision.master) / setting.degrees.optimizer);
    }
  }
  for (const auto& [dtype, largest] : converted) bytes[MemoryClass::kGradientBuffers] += largest;
  bytes[MemoryClass::kGradientBuffers] +=
      bytes_of(blocks, setting.units_in_reduction) + bytes_of(roots, setting.units_in_reduction);
  return bytes;
}

}  // namespace tessera
