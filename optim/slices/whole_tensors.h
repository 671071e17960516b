#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optim/algorithm/whole_update.h"
#include "tessera/optim/plan/parameter_groups.h"
#include "tessera/optim/slices/optimizer_shard.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The parameters that their algorithms treat as a whole, and the pieces of these parameters in an
/// optimizer's shards. Note [Whole tensors] in whole_update.h. This object works in one of two
/// ways. It may work alone, on shards that hold whole parameters; then the optimizer's update()
/// does everything. Otherwise the caller gives each piece a place for its direction. After update()
/// the caller gathers the directions and puts pieces of the results in the same places, or it adds
/// up squares. In both cases the caller provides the memory of the states that this rank keeps
/// whole. Local; used by one thread.
class WholeTensors {
 public:
  /// Returns null if all algorithms of `groups` that have parameters are elementwise. References
  /// must outlive the result.
  static std::unique_ptr<WholeTensors> make(const ParameterTable& table,
                                            const ParameterGroups& groups,
                                            const std::vector<OptimizerShard>& shards);

  /// Returns the table's indices of the parameters that are treated as a whole, ascending and
  /// without empty parameters. Equal on all ranks.
  const std::vector<size_t>& parameters() const { return parameters_; }
  bool has(size_t parameter) const { return update_of_[parameter] != nullptr; }
  /// Returns true if the algorithm takes norms of the parameter, and does not transform it.
  bool needs_norms(size_t parameter) const {
    return update_of_[parameter]->needs() == WholeUpdate::Needs::kNorms;
  }
  /// Returns true if the parameter's owner needs the parameter's values as well as its direction,
  /// and computes new values.
  bool needs_values(size_t parameter) const {
    return update_of_[parameter]->needs() == WholeUpdate::Needs::kValues;
  }
  /// Return what the functions of the same names of the parameter's WholeUpdate return.
  int64_t cost(size_t parameter) const;
  int64_t scratch_numel(size_t parameter) const;

  /// A state that a parameter's owner keeps whole.
  struct State {
    size_t parameter;
    WholeState form;
    int owner = 0;  ///< number of the owner among the ranks that share the parameter's slices
    at::Tensor memory = {};  ///< of form.sizes; undefined if another rank is the owner
  };
  /// Returns the states in the order of parameters(). The list is the same on all ranks.
  const std::vector<State>& states() const { return states_; }
  /// Sets the owner of state `state` and, on the owner, the state's memory: [numel] of the state's
  /// dtype, filled with zeros. On other ranks `memory` is undefined.
  void keep(size_t state, int owner, const at::Tensor& memory);

  /// Sets the place of a piece's direction and of its result: a tensor [segment numel] of the
  /// shard's dtype.
  void place(size_t shard, size_t segment, at::Tensor piece);
  /// Sets the place of a piece's values, for a parameter that needs_values().
  void place_values(size_t shard, size_t segment, at::Tensor piece);
  /// Allocates `scratch_bytes` of scratch memory for transform(). If `whole_bytes` is above 0, also
  /// allocates that many bytes for a whole direction, and from then on works alone.
  void reserve(int64_t scratch_bytes, int64_t whole_bytes);
  bool works_alone() const { return whole_.defined(); }
  /// Returns the first `numel` elements of the scratch memory, for gathering the gradient of a
  /// parameter that needs_values().
  at::Tensor scratch(int64_t numel, at::ScalarType dtype) const;
  /// Returns the bytes that reserve() has allocated.
  int64_t bytes() const;

  /// Sets the parameter's step count to `step`, which includes the update that begins.
  void set_step(size_t parameter, int64_t step);
  /// Returns the place for the direction of a piece. For a parameter that needs_norms(), first
  /// copies the piece's values there. For a parameter that needs_values(), copies them to the place
  /// given to place_values(), unless this object works alone.
  void* begin(size_t shard, size_t segment) const;
  /// Finishes the update of the segment's parameter after its direction has been written:
  /// transforms the direction or takes norms, if needed, and writes new values. Call it only if
  /// this object works alone.
  void finish(size_t shard, size_t segment);

  /// Sums of squares over the whole parameter, or a part of it.
  struct Squares {
    ExactSum of_values;
    ExactSum of_direction;
  };
  /// Adds the squares of the piece's values and direction to `sums`. The direction must have been
  /// written.
  void add_squares_of(size_t shard, size_t segment, Squares& sums) const;
  /// Sets the norms that apply() uses, from the sums of squares over the whole parameter.
  void set_norms(size_t parameter, const Squares& sums);

  /// Replaces `direction`, [numel] in the order of the parameter's memory, by the result of
  /// WholeUpdate::transform().
  void transform(size_t parameter, const at::Tensor& direction) const;
  /// For a parameter that needs_values(): writes new `values`. Both tensors are laid out like
  /// transform()'s direction.
  void update(size_t parameter, const at::Tensor& values, const at::Tensor& gradient) const;
  /// Updates the used parameters of parameters() in `shard` with the results in their pieces'
  /// places.
  void apply(size_t shard, std::span<const uint8_t> used);

 private:
  WholeTensors(const ParameterTable& table, const ParameterGroups& groups,
               const std::vector<OptimizerShard>& shards);

  const torch::optim::OptimizerOptions& options(size_t parameter) const {
    return groups_.options(groups_.group_of(parameter));
  }
  at::IntArrayRef sizes(size_t parameter) const { return table_[parameter].tensor.sizes(); }
  void list_states(size_t parameter, const Algorithm& algorithm);
  at::Tensor piece(size_t shard, size_t segment) const;
  at::Tensor values_of(size_t shard, size_t segment) const;
  void apply(size_t shard, size_t segment, const void* result);

  const ParameterTable& table_;
  const ParameterGroups& groups_;
  const std::vector<OptimizerShard>& shards_;
  std::map<const Algorithm*, std::unique_ptr<WholeUpdate>> updates_;
  std::vector<WholeUpdate*> update_of_;  // per entry of the table; null: not in parameters()
  std::vector<size_t> parameters_;
  // Per entry of the table: sizes, and the norms of this step.
  std::vector<WholeUpdate::Whole> wholes_;
  std::vector<State> states_;
  std::vector<std::vector<at::Tensor>> states_of_;  // per entry of the table, by WholeState::number
  std::vector<int64_t> steps_;                      // per entry of the table
  std::vector<std::vector<at::Tensor>> places_;     // per shard, per segment
  std::vector<std::vector<at::Tensor>> places_of_values_;  // per shard, per segment
  at::Tensor scratch_;                                     // bytes
  at::Tensor whole_;  // bytes for a whole direction; undefined unless this works alone
};

}  // namespace tessera::internal
