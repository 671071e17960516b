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
  /// The most units whose gradients may be arriving or in reduction at once.
  int units_in_reduction = 1;
  /// Options::reshard_after_forward, resolved: 1 keeps units whole, degrees.parameters frees them,
  /// a value in between keeps a second shard.
  int ranks_after_forward = 0;
  Offload offload = Offload::kNone;  ///< Options::offload
  /// The optimizer's states per element or block of elements (AdamW: two moments), each with the
  /// parameters that have it.
  std::vector<KeptState> states = {};
  /// Index of this rank's slice of the optimizer's state, below degrees.optimizer. A state's size
  /// differs between ranks where only some parameters of a unit have the state.
  int optimizer_slice = 0;
  bool has_average = false;  ///< Options::average
  /// Memory for updating parameters as a whole (Muon, LAMB, whole_tensor()), besides the
  /// optimizer's split states; includes states that this rank keeps whole.
  int64_t whole_tensor_bytes = 0;
  /// Further memory for that, on the group's device, if ranks cannot read each other's memory; 0
  /// otherwise.
  int64_t gathered_direction_bytes = 0;
  int64_t comm_hook_bytes = 0;  ///< what a communication hook keeps: CommHook::bytes()
};

/// Returns the persistent bytes per rank that training keeps, from the layout alone, padding
/// included: the memory formula of docs/memory.md. The terms below are for each unit. P, S and M
/// are its padded bytes in the dtype of its parameters, of its reduced gradients and of its
/// masters. T is the bytes of all its optimizer states (2 M with AdamW's two moments, and M more
/// with an average of the weights). p, g and o are the degrees, n is ranks_after_forward. If only
/// some parameters of a unit have a state, T / o counts the elements of this rank's slice that
/// belong to them, with the padding after each; a slice of nothing but padding counts in full.
///   parameters: P / p (+ P / n of a second shard, 1 < n < p); P / o where ranks share them, and
///   then neither unsharded-parameter buffers nor root.
///   gradients:  S / o (S / g where 1 < g < o) if reduced gradients have a buffer of their own.
///   With adds_as_tree S / o always, and with k > 1 micro-steps that times log2(k), rounded up.
///   Under zero1 (g = 1, o > 1) with one micro-step and equal dtypes of communication and sums they
///   have no such buffer, because the reduced slice stays in the gradient buffer. Nor do frozen
///   units, and units updated in backward that have all their gradients on this rank. Plus
///   comm_hook_bytes, once.
///   optimizer:  T / o, (T + M) / o with masters; none for frozen units. Plus whole_tensor_bytes
///   and gathered_direction_bytes, once.
///   unsharded parameters: for each dtype, two buffers of the size of its largest unit that is not
///   root (one if there is only one such unit). If units stay whole after forward, P of every unit
///   that is not root instead.
///   root:       P of root units.
///   gradient buffers: under zero1, which keeps them, the full gradients in the communication
///   dtype. Elsewhere these buffers are pooled and temporary, and not part of the formula (0 here).
///   host:       0 unless something is offloaded. Then it replaces optimizer, except for
///   gathered_direction_bytes, and includes copies of the reduced gradients: (T + M + S) / o ((T +
///   S) / o under kParameters where M and P have one dtype), M / o of the largest unit whose S and
///   M differ in dtype, and under kOptimizer twice P / o of the largest unit whose P and M differ
///   in dtype. Under kParameters it also includes P / p, instead of parameters.
/// control is 0 here, because it is small and depends on the number of parameters, not on P. The
/// formula leaves out the memory of process groups: over MPI 8 MiB for each group that reduces
/// (32 KiB for each of its ranks, if that is more). See docs/memory.md, "What groups hold".
MemoryBytes memory_formula(const UnitPlan& plan, const MemorySetting& setting);

/// Returns the most bytes per rank that training holds at once: memory_formula() plus pooled
/// gradient buffers. For each communication dtype there are two pools, one for root units and one
/// for all other units. Each holds setting.units_in_reduction buffers of the size of its largest
/// unit: on a CPU Options::units_in_reduction; on a GPU two, or three where gradients are gathered
/// over replicas after the reduction. There is no pool under zero1, nor under ddp with one
/// micro-step and a communication dtype as wide as the sums.
///
/// If backward updates, adds one slice, in the masters' dtype, of the largest unit whose gradients
/// are sent in another dtype than the masters'.
///
/// With one buffer the formula is exact if gradients come in the order of reductions, one unit
/// after the other. With more buffers it is a bound, reached when reductions lag that far behind
/// backward. More is held under no_sync(), which keeps every unit's gradients, for a module used
/// twice in one backward, and where Precision::reduce is not the masters' dtype.
MemoryBytes memory_peak_formula(const UnitPlan& plan, const MemorySetting& setting);

}  // namespace tessera
