#pragma once

#include <vector>

#include "tessera/element_state.h"
#include "tessera/memory_meter.h"
#include "tessera/options.h"
#include "tessera/strategy.h"
#include "tessera/unit_plan.h"

namespace tessera {

/// The inputs of memory_formula() besides the units.
struct MemorySetting {
  Degrees degrees;
  int micro_steps = 1;     ///< backwards per step, each reduced by itself; at least 1
  bool is_split = false;   ///< units are gathered and freed (degrees.parameters > 1)
  bool is_shared = false;  ///< the ranks of a host have one copy (Options::share_parameters)
  bool updates_in_backward = false;  ///< Options::optimizer_in_backward
  bool adds_as_tree = false;         ///< Reproducible::kAnyWorldSize
  /// The largest number of units whose gradients may be arriving or under reduction at the same
  /// time.
  int units_in_reduction = 1;
  /// Options::reshard_after_forward, resolved: if 1, units stay whole after forward; if
  /// degrees.parameters, they are freed; if a value in between, they are freed and each rank keeps
  /// a second shard.
  int ranks_after_forward = 0;
  Offload offload = Offload::kNone;  ///< Options::offload
  /// The optimizer's states per element or block of elements (AdamW: two moments), each with the
  /// parameters that have it.
  std::vector<KeptState> states = {};
  /// Index of this rank's slice of the optimizer's state, below degrees.optimizer. A state's size
  /// differs between ranks where only some parameters of a unit have the state.
  int optimizer_slice = 0;
  bool has_average = false;  ///< Options::average
  /// Bytes for updating parameters as a whole (Muon, LAMB, whole_tensor()). They include states
  /// that this rank keeps whole, but not the states that are split over ranks.
  int64_t whole_tensor_bytes = 0;
  /// Bytes on the group's device that updating parameters as a whole takes besides
  /// whole_tensor_bytes, if ranks cannot read each other's memory; else 0.
  int64_t gathered_direction_bytes = 0;
  int64_t comm_hook_bytes = 0;  ///< what a communication hook keeps: CommHook::bytes()
};

/// Returns the persistent bytes per rank that training keeps, from the layout alone, padding
/// included: the memory formula of docs/memory.md. The terms below are for each unit. P, S and M
/// are its padded bytes in the dtype of its parameters, of its reduced gradients and of its
/// masters. T is the bytes of all its optimizer states (2 M with AdamW's two moments, and M more
/// with an average of the weights). p, g and o are the degrees, n is ranks_after_forward. If only
/// some parameters of a unit have a state, T / o counts only the elements of these parameters in
/// this rank's slice, with the padding after each; a slice that is all padding counts in full.
///   parameters: P / p (+ P / n of a second shard, 1 < n < p); P / o where ranks share them; then
///   there are no unsharded-parameter buffers and no root.
///   gradients:  S / o (S / g where 1 < g < o) if reduced gradients have a buffer of their own.
///   With adds_as_tree it is S / o even where 1 < g < o, and with k > 1 micro-steps
///   (S / o) * ceil(log2(k)).
///   There is no such buffer under zero1 (g = 1, o > 1) with one micro-step and equal dtypes of
///   communication and sums, because the reduced slice stays in the gradient buffer. Frozen units
///   have none, and neither have units that are updated in backward, if this rank has all their
///   gradients, as the formula assumes. Plus comm_hook_bytes, once.
///   optimizer:  T / o, (T + M) / o with masters; none for frozen units. Plus whole_tensor_bytes
///   and gathered_direction_bytes, once.
///   unsharded parameters: for each dtype, two buffers of the size of its largest unit that is not
///   root (one if there is only one such unit). If units stay whole after forward, P of every unit
///   that is not root instead.
///   root:       P of root units.
///   gradient buffers: under zero1, which keeps them, the full gradients in the communication
///   dtype. Elsewhere these buffers are pooled and temporary, and not part of the formula (0 here).
///   host:       0 unless something is offloaded. Then it replaces optimizer, except for
///   gathered_direction_bytes, and includes copies of the reduced gradients. It is the sum of
///   (T + M + S) / o, or (T + S) / o under kParameters where M and P have one dtype; M / o of the
///   largest unit whose S and M differ in dtype; under kOptimizer, twice P / o of the largest unit
///   whose P and M differ in dtype; under kParameters, P / p, which `parameters` then leaves out.
/// control is 0 here, because it is small and depends on the number of parameters, not on P. The
/// formula leaves out the memory of process groups: over MPI 8 MiB for each group that reduces (32
/// KiB for each of its ranks, if that is more). See docs/memory.md, "What groups hold".
MemoryBytes memory_formula(const UnitPlan& plan, const MemorySetting& setting);

/// Returns the most bytes per rank that training holds at once: memory_formula() plus pooled
/// gradient buffers. For each communication dtype there are two pools, one for root units and one
/// for all other units. Each has buffers of the size of its largest unit. Their number is
/// setting.units_in_reduction, or the number of the pool's units if that is less. That is
/// Options::units_in_reduction, and one more on a GPU where gradients are gathered over replicas
/// after the reduction. There is no pool under zero1, nor under ddp with one micro-step and sums in
/// the communication dtype.
///
/// If units are updated in backward, adds one slice of the largest unit whose gradients are sent in
/// another dtype than its masters have. The slice counts with its bytes in the masters' dtype.
///
/// With one buffer the formula is exact if gradients come in the order of reductions, one unit
/// after the other. With more buffers it is an upper bound, reached when reductions lag so far
/// behind backward that all buffers are in use. Training holds more than the formula says in three
/// cases: under no_sync(), which keeps every unit's gradients; if a module is used twice in one
/// backward; and if Precision::reduce is not the masters' dtype.
MemoryBytes memory_peak_formula(const UnitPlan& plan, const MemorySetting& setting);

}  // namespace tessera
