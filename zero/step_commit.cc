#include "tessera/zero/step_commit.h"

#include <c10/util/Exception.h>

#include "tessera/optim/flat_adamw.h"
#include "tessera/zero/host_commit.h"
#include "tessera/zero/partition.h"

namespace tessera {

void StepCommit::agree_to_update(const StepVote::Paper& /*paper*/) {
  TORCH_INTERNAL_ASSERT(false, "this commit updates in step()");
}

std::unique_ptr<StepCommit> make_step_commit(const StepCommit::Parts& parts,
                                             const OptimizerPlan& plan,
                                             const std::vector<size_t>& group_of) {
  std::vector<OptimizerShard> shards =
      optimizer_shards(parts.plan, parts.slices, parts.store.masters().values());
  return std::make_unique<HostCommit>(
      parts, make_flat_adamw(parts.table, plan, group_of, std::move(shards)));
}

}  // namespace tessera
