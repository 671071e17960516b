#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

/// A run of elements of a named tensor.
struct StatePiece {
  /// Index of the first element, counted in the memory order that the entry's strides give.
  int64_t begin = 0;
  at::Tensor values;  ///< 1-d, contiguous, CPU; memory of its own
};

/// One named tensor of a state: whole (one piece that covers it) or in part.
struct StateEntry {
  std::vector<int64_t> sizes;    ///< empty for a number
  std::vector<int64_t> strides;  ///< dense and without overlap: contiguous, channels_last, ...
  at::ScalarType dtype = at::kFloat;
  std::vector<StatePiece> pieces;  ///< may overlap: the first piece that has an element counts

  int64_t numel() const;
  /// Local. Returns what is malformed (negative sizes, strides that overlap or leave gaps, a piece
  /// that is out of range, of another dtype or without memory), "got X, expected Y"; "" if nothing.
  std::string problem() const;
  /// Returns true if one piece covers all elements. merge() does not join pieces: an entry that
  /// only several pieces together cover is not whole.
  bool is_whole() const;
  /// Returns the tensor, in its logical shape; shares memory with the piece. Throws c10::Error
  /// unless is_whole(), and if it is malformed.
  at::Tensor tensor() const;
};

/// The state of a training run in memory, by name: "model.<parameter or buffer>",
/// "optimizer.<parameter>.exp_avg" and the other states of its algorithm (docs/optimizers.md; for
/// 8-bit moments codes of the parameter's shape, and one scale per 64 elements; under
/// whole_tensor() of any shape),
/// ".step", ".master" (where masters are more precise than the parameters), ".average"
/// (Options::average), "optimizer.<group>.lr" and the other hyper-parameters, for each group also
/// "optimizer.<group>.algorithm.<its algorithm>", always 1 (the group of parameters that no
/// OptimizerGroup selects is "defaults"), "engine.steps", "engine.averaged_updates"
/// (Options::average), "engine.micro_batches" and "engine.intra_op_threads"
/// (Options::reproducible), "scaler.scale", "scaler.good_steps" (Options::loss_scale). Counts are
/// int64, other numbers double, both without dimensions. Names and values do not depend on the
/// strategy or the number of ranks. Shared parameters and buffers appear under their first name.
/// Buffers are rank 0's.
struct StateDict {
  std::map<std::string, StateEntry> entries;

  /// Appends the pieces of `other`, e.g. of another rank; no values are copied. Throws c10::Error,
  /// naming the entry, if sizes, strides or dtypes differ; nothing is added then.
  void merge(StateDict other);
};

/// Which part of the state each rank gets from Engine::state_dict().
enum class StateScope : uint8_t {
  kEveryRank,  ///< all of it, on every rank
  kOneRank,    ///< all of it on one rank, nothing on the others
  kSharded,    ///< what each rank keeps; together the ranks have every element exactly once
};

}  // namespace tessera
