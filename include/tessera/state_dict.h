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
  /// If pieces overlap, an element has the value of the first piece that contains it.
  std::vector<StatePiece> pieces;

  int64_t numel() const;
  /// Local. Returns a text "got X, expected Y" about what is malformed (negative sizes, strides
  /// that overlap or leave gaps, a piece that is out of range, of another dtype or without memory);
  /// "" if nothing is.
  std::string problem() const;
  /// Returns true if there is only one piece and it covers all elements. An entry that it takes
  /// several pieces to cover is not whole, because merge() does not join pieces.
  bool is_whole() const;
  /// Returns the tensor, in its logical shape; shares memory with the piece. Throws c10::Error if
  /// the entry is malformed or not whole (is_whole()).
  at::Tensor tensor() const;
};

/// The state of a training run in memory. Each entry has one of these names:
///   "model.<parameter or buffer>"
///   "optimizer.<parameter>.exp_avg", and the other states of the parameter's algorithm
///       (docs/optimizers.md). Moments in 8 bits are codes of the parameter's shape and one scale
///       per 64 elements. States under whole_tensor() have any shape.
///   "optimizer.<parameter>.step"
///   "optimizer.<parameter>.master", if masters are more precise than the parameters
///   "optimizer.<parameter>.average" (Options::average)
///   "optimizer.<group>.lr", and the group's other hyper-parameters. The group of parameters that
///       no OptimizerGroup selects is "defaults".
///   "optimizer.<group>.algorithm.<its algorithm>", always 1
///   "engine.steps", "engine.averaged_updates" (Options::average), "engine.micro_batches" and
///       "engine.intra_op_threads" (Options::reproducible)
///   "scaler.scale", "scaler.good_steps" (Options::loss_scale)
/// Counts are int64 and other numbers double, both without dimensions. Names and values do not
/// depend on the strategy or the number of ranks. Shared parameters and buffers appear under their
/// first name. The values of buffers are those that rank 0 has.
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
