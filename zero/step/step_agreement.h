#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tessera/core/step/step_vote.h"
#include "tessera/optim/flat_optimizer.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"

namespace tessera::internal {

/// The vote of a step on what this rank's report and the optimizer's hyper-parameters say.
class StepAgreement {
 public:
  /// References and `trace` (may be null) must outlive it.
  StepAgreement(ProcessGroup& group, const ParameterTable& table, const FlatOptimizer& optimizer,
                Trace* trace);

  /// Collective. StepVote::agree() in two halves: hands in the report; then, or later, before
  /// anything else goes by the host's channel, looks at the others'. Whatever start() throws is
  /// this rank's own; finish() throws what all ranks do.
  void start(StepVote::RankReport rank_report);
  StepVote::Result finish();
  /// In the place of finish(), on all ranks alike: all know by other means that they agree. Never
  /// blocks.
  void drop();

  /// A number that ranks have in common if they agree on all that a report and the hyper-parameters
  /// say but what is wrong on this rank alone and its gradients.
  uint64_t hash(const StepVote::RankReport& rank_report);

  /// StepVote::ask().
  NonFinite ask(const std::function<NonFinite(const NonFiniteReport&)>& ask_non_finite,
                const NonFiniteReport& report) {
    return vote_.ask(ask_non_finite, report);
  }

  int64_t bytes() const { return vote_.bytes(); }

 private:
  const std::vector<int64_t>& hyper_parameters();

  const FlatOptimizer& optimizer_;
  Trace* const trace_;
  std::vector<int64_t> hyper_parameters_;  // as of the last report
  StepVote vote_;
  std::optional<StepVote::RankReport> started_;
};

}  // namespace tessera::internal
