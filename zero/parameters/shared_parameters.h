#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tessera/core/layout/slice_map.h"
#include "tessera/core/layout/unit_memory.h"
#include "tessera/process_group.h"
#include "tessera/shared_buffer.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// One copy of the parameters for all ranks of a host that update different slices.
///
/// Note [Shared parameters]
/// If p = 1 or p = o, the o ranks with different optimizer slices write disjoint parts, which
/// together are all parameters. These ranks share one buffer. Each writes its slice in step();
/// after a barrier all see the new values, so no all-gather is needed. Between two steps no rank
/// writes the common memory, see Note [The step is a fence]. The model's tensors are this rank's
/// private view (copy on write): a user's write, inside modify_parameters or by mistake outside it,
/// is not seen by other ranks, and the page tables show which pages were written.
class SharedParameters {
 public:
  /// Returns null on all ranks of `group` if they cannot share parameters: if the degrees do not
  /// allow it (can_share_parameters()), or if any ranks have no common memory or cannot detect
  /// writes to it. Throws c10::Error on all ranks if any rank lacks the space. Collective over
  /// `group`. References must outlive it.
  static std::unique_ptr<SharedParameters> make(ProcessGroup& group, const UnitPlan& plan,
                                                const SliceMap& slices);

  UnitMemory memory(size_t unit);

  /// Returns the table index of the first parameter that was written through the model, so that
  /// this rank sees other bytes than its peers. Local; no rank may write the common memory
  /// meanwhile. Throws c10::Error if the system does not show which pages were written.
  std::optional<size_t> find_written();

  /// Discards what this rank has written through the model; the shards' values become visible
  /// again.
  void drop_own_writes() { buffer_->drop_own_writes(); }

 private:
  SharedParameters(const UnitPlan& plan, const SliceMap& slices, std::vector<int64_t> offsets_bytes,
                   std::unique_ptr<SharedBuffer> buffer);

  const UnitPlan& plan_;
  const SliceMap& slices_;
  const std::vector<int64_t> offsets_bytes_;  // where each unit begins in *buffer_
  const std::unique_ptr<SharedBuffer> buffer_;
};

}  // namespace tessera::internal
