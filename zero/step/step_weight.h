#pragma once

#include <optional>
#include <string>

#include "tessera/core/reduce/backward_agreement.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"
#include "tessera/unit_plan.h"

namespace tessera::internal {

/// The weights of a step's backwards (BackwardOptions::weight): this rank's as they come, those of
/// all ranks as they are exchanged at the end of each backward that reduces. Note [Weights] in
/// step_weight.cc. Used by one thread.
class StepWeight {
 public:
  /// `group` must outlive it.
  StepWeight(ProcessGroup& group, const UnitPlan& plan);

  /// A backward of this rank begins with `weight`, or without one. A weight that is no weight
  /// counts as 0, and problem() says so. Where gradients are sent or summed in fp16, it is
  /// collective in the first backward of a step that has a weight; else local.
  void begin(std::optional<double> weight);

  /// Whether steps without weights are divided by how many ranks had a loss, which is the number of
  /// ranks unless some had none: by its mean over the step's backwards.
  void divide_by_active(bool divides) {
    divides_by_active_ = divides;
    divides_step_ = divides_step_ || divides;
  }

  /// What the gradients of the backward that has begun are multiplied with.
  double factor() const { return factor_; }

  /// What this rank says at the end of a backward of what it has begun since the last exchange.
  BackwardAgreement::Report report() const { return mine_; }
  /// All ranks have said it.
  void collect(const BackwardAgreement& agreement);

  /// What is wrong with the weights of this step; "" if nothing. What collect() finds all ranks
  /// find.
  const std::string& problem() const { return problem_; }

  /// Whether the step has weights.
  bool is_weighted() const { return has_weighted_; }
  /// Their sum over all ranks; unset if it has none. Equal on all ranks.
  std::optional<double> sum() const;
  /// By what the step's reduced gradients, divided by the number of ranks, must still be divided to
  /// be the weighted mean, or that over the ranks that had a loss; 1 otherwise, and if weights are
  /// zero. Equal on all ranks.
  double divisor() const;

  /// The step is over, or its gradients are dropped.
  void clear();

  int64_t bytes() const { return units_.has_value() ? units_->bytes() : 0; }

 private:
  double agreed_unit(double weight);

  ProcessGroup& group_;
  std::optional<HostAllGather> units_;  // where gradients are sent in fp16
  BackwardAgreement::Report mine_;      // since the last exchange
  bool has_plain_ = false;              // in this step, on this rank or any
  bool has_weighted_ = false;
  bool divides_by_active_ = false;
  bool divides_step_ = false;  // also where that has ended before this step
  double sum_ = 0.0;           // of what was exchanged; without weights of losses
  double backwards_ = 0.0;     // without weights: of the rank that had most, since each exchange
  double factor_ = 1.0;
  std::optional<double> unit_;  // of weight, in this step
  std::string problem_;
};

/// What is wrong with `weight`; "" if nothing. Local.
std::string problem_of_weight(const std::optional<double>& weight);

}  // namespace tessera::internal
