#pragma once

#include <cstddef>
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
  /// References and `trace` (may be null) must outlive it. `norms`: how many a report has.
  StepAgreement(ProcessGroup& group, const ParameterTable& table, const FlatOptimizer& optimizer,
                Trace* trace, size_t norms = 1);

  /// Collective. The two halves of StepVote::agree(): start() submits the report; finish() checks
  /// the others', before any other use of the host channel. Exceptions of start() concern this rank
  /// only; finish() throws on all ranks.
  void start(StepVote::RankReport rank_report);
  StepVote::Result finish();
  /// In the place of finish(), on all ranks alike: all know by other means that they agree. Never
  /// blocks.
  void drop();

  /// A hash of the report and the hyper-parameters, without this rank's own errors and gradients:
  /// equal on ranks that agree.
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
