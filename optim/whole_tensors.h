#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/numbers/exact_sum.h"
#include "tessera/optim/algorithm.h"
#include "tessera/optim/optimizer_shard.h"
#include "tessera/optim/parameter_groups.h"
#include "tessera/optim/whole_update.h"
#include "tessera/parameter_table.h"

namespace tessera::internal {

/// The parameters of an optimizer whose algorithms transform them as a whole, and the pieces of
/// them that lie in its shards. Note [Whole tensors] in whole_update.h. Either it works alone, on
/// shards that hold whole parameters, and then the optimizer's update() does everything; or
/// somebody gives each piece a place for its direction, brings directions together, and puts pieces
/// of the results in their place, or adds up squares. Local; used by one thread.
class WholeTensors {
 public:
  /// Null where all algorithms of `groups` that have parameters are elementwise. References must
  /// outlive it.
  static std::unique_ptr<WholeTensors> make(const ParameterTable& table,
                                            const ParameterGroups& groups,
                                            const std::vector<OptimizerShard>& shards);

  /// Those parameters of the table that have elements, ascending; the same on all ranks.
  const std::vector<size_t>& parameters() const { return parameters_; }
  bool has(size_t parameter) const { return update_of_[parameter] != nullptr; }
  /// Whether norms are taken of it, instead of a transform.
  bool needs_norms(size_t parameter) const {
    return update_of_[parameter]->needs() == WholeUpdate::Needs::kNorms;
  }
  /// As WholeUpdate's.
  int64_t cost(size_t parameter) const;
  int64_t scratch_numel(size_t parameter) const;

  /// Where the direction of a piece goes and its result comes from: [segment numel], of the shard's
  /// dtype.
  void place(size_t shard, size_t segment, at::Tensor piece);
  /// Makes memory for transform() of what needs at most `scratch_bytes`; with `whole_bytes` above 0
  /// also for a whole direction of at most that size: it works alone.
  void reserve(int64_t scratch_bytes, int64_t whole_bytes);
  bool works_alone() const { return whole_.defined(); }
  /// What reserve() has made.
  int64_t bytes() const;

  /// Where the optimizer writes the direction of a piece; it holds the values if norms are needed.
  void* begin(size_t shard, size_t segment) const;
  /// Where it works alone: transforms the parameter of this segment, or takes its norms, and
  /// updates it. Its direction has been written.
  void finish(size_t shard, size_t segment);

  /// Sums of squares over the whole parameter, or a part of it.
  struct Squares {
    ExactSum of_values;
    ExactSum of_direction;
  };
  /// Adds those of this piece, whose direction has been written.
  void add_squares_of(size_t shard, size_t segment, Squares& sums) const;
  /// The sums of the whole parameter, for apply().
  void set_norms(size_t parameter, const Squares& sums);

  /// Replaces `direction`, [numel] in the order of the parameter's memory, by the result.
  void transform(size_t parameter, const at::Tensor& direction) const;
  /// Updates the values of `shard` by the results in their places, as far as parameters are used.
  void apply(size_t shard, std::span<const uint8_t> used);

 private:
  WholeTensors(const ParameterTable& table, const ParameterGroups& groups,
               const std::vector<OptimizerShard>& shards);

  const torch::optim::OptimizerOptions& options(size_t parameter) const {
    return groups_.options(groups_.group_of(parameter));
  }
  at::IntArrayRef sizes(size_t parameter) const { return table_[parameter].tensor.sizes(); }
  at::Tensor piece(size_t shard, size_t segment) const;
  void apply(size_t shard, size_t segment, const void* result);

  const ParameterTable& table_;
  const ParameterGroups& groups_;
  const std::vector<OptimizerShard>& shards_;
  std::map<const Algorithm*, std::unique_ptr<WholeUpdate>> updates_;
  std::vector<WholeUpdate*> update_of_;  // per entry of the table; null: not one of these
  std::vector<size_t> parameters_;
  std::vector<WholeUpdate::Whole> wholes_;       // per entry of the table, norms of this step
  std::vector<std::vector<at::Tensor>> places_;  // per shard, per segment
  at::Tensor scratch_;                           // bytes
  at::Tensor whole_;                             // bytes; undefined: others bring pieces together
};

}  // namespace tessera::internal
