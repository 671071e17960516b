#include "tessera/zero/step/step_agreement.h"

#include <bit>
#include <utility>

#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/sched/trace_span.h"

namespace tessera::internal {

StepAgreement::StepAgreement(ProcessGroup& group, const ParameterTable& table,
                             const FlatOptimizer& optimizer, Trace* trace, size_t norms)
    : optimizer_(optimizer),
      trace_(trace),
      vote_(group, table, optimizer.groups().hyper_parameter_names(), norms) {}

const std::vector<int64_t>& StepAgreement::hyper_parameters() {
  hyper_parameters_.clear();
  optimizer_.groups().append_hyper_parameters(hyper_parameters_);
  return hyper_parameters_;
}

void StepAgreement::start(StepVote::RankReport rank_report) {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  vote_.start(rank_report, hyper_parameters());
  started_ = std::move(rank_report);
}

StepVote::Result StepAgreement::finish() {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  const StepVote::RankReport rank_report = *std::exchange(started_, std::nullopt);
  return vote_.finish(rank_report);
}

void StepAgreement::drop() {
  vote_.drop();
  started_.reset();
}

uint64_t StepAgreement::hash(const StepVote::RankReport& rank_report) {
  RollingHash hash;
  const auto add = [&hash](int64_t word) { hash.record(RollingHash::Event::kStep, word); };
  add(rank_report.step);
  add(rank_report.backwards > 0 ? 1 : 0);
  add(rank_report.history);
  add(rank_report.gathers);
  add(rank_report.gradient_edits);
  add(std::bit_cast<int64_t>(rank_report.loss_scale));
  for (const int64_t word : hyper_parameters()) add(word);
  return static_cast<uint64_t>(hash.value());
}

}  // namespace tessera::internal
