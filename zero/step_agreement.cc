#include "tessera/zero/step_agreement.h"

#include <bit>
#include <utility>

#include "tessera/core/step/rolling_hash.h"

namespace tessera {

StepAgreement::StepAgreement(ProcessGroup& group, const ParameterTable& table,
                             const FlatOptimizer& optimizer, Trace* trace)
    : optimizer_(optimizer),
      trace_(trace),
      vote_(group, table, optimizer.groups().hyper_parameter_names()) {}

const std::vector<int64_t>& StepAgreement::hyper_parameters() {
  hyper_parameters_.clear();
  optimizer_.groups().append_hyper_parameters(hyper_parameters_);
  return hyper_parameters_;
}

void StepAgreement::start(StepVote::Paper paper) {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  vote_.start(paper, hyper_parameters());
  started_ = std::move(paper);
}

StepVote::Verdict StepAgreement::finish() {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  const StepVote::Paper paper = *std::exchange(started_, std::nullopt);
  return vote_.finish(paper);
}

void StepAgreement::drop() {
  vote_.drop();
  started_.reset();
}

uint64_t StepAgreement::hash(const StepVote::Paper& paper) {
  RollingHash hash;
  const auto add = [&hash](int64_t word) { hash.record(RollingHash::Event::kStep, word); };
  add(paper.step);
  add(paper.backwards > 0 ? 1 : 0);
  add(paper.history);
  add(paper.gathers);
  add(paper.gradient_edits);
  add(std::bit_cast<int64_t>(paper.loss_scale));
  for (const int64_t word : hyper_parameters()) add(word);
  return static_cast<uint64_t>(hash.value());
}

}  // namespace tessera
