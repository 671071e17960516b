#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/options/resolved_options.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/core/step/norm_sum.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"

namespace tessera::internal {

/// The one small collective per step in which all ranks agree to commit it. Every rank reads every
/// rank's report and reaches the same result: the step is committed on all ranks or refused on all
/// with the same text.
class StepVote {
 public:
  /// One rank's contribution to the vote on a step.
  struct RankReport {
    int64_t step = 0;        ///< the step that this rank is about to make
    int64_t backwards = 0;   ///< number of backwards since the last step
    int64_t history = 0;     ///< RollingHash of backwards, reductions, dropped gradients and steps
    int64_t gathers = 0;     ///< RollingHash of the units gathered by collectives
    int64_t non_finite = 0;  ///< number of NaN or infinite elements of this rank's gradients
    int64_t non_finite_parameter = -1;  ///< the first parameter with such elements; -1 if none
    /// This rank's part of the norm of the scaled gradients; if each parameter group has a norm of
    /// its own, this rank's part of each. All ranks must have the same number of norms, and the
    /// n-th one must have the same NormSum::p() on all ranks.
    std::vector<NormSum> norms = {NormSum()};
    double loss_scale = 1.0;  ///< the factor by which this rank scaled its losses
    /// The sum of the step's weights over all ranks; unset if the step has no weights. To account
    /// for these weights, gradients must be divided by `divisor` and by the loss scale. `weight`
    /// and `divisor` are the same on all ranks.
    std::optional<double> weight = {};
    double divisor = 1.0;
    double gradient_scale() const { return loss_scale * divisor; }
    int64_t gradient_edits = 0;  ///< number of times the user wrote `.grad` in place
    std::vector<int64_t> hyper_parameters = {};  ///< present values, as bit patterns of doubles
    std::string misuse;  ///< what this rank did wrong before the step, "<what>; <remedy>"; else ""
    /// The last sentence of the error if the step is refused. It says what happened to the
    /// parameters. The same on all ranks.
    const char* if_refused = "Nothing was applied.";
  };

  /// The result of the vote, equal on all ranks.
  struct Result {
    /// Global norm of the mean gradient, already divided by RankReport::gradient_scale(); not
    /// finite if `non_finite` is set.
    double grad_norm = 0.0;
    /// The global norm for each of RankReport::norms.
    std::vector<double> norms;
    /// Set if gradients are not finite; then the step must not be applied. Either a rank produced
    /// NaN or infinite elements, or only the mean over ranks has some. In the second case the
    /// entries have parameter "" and elements 0; their ranks are those whose part of the mean is
    /// not finite, or kAllRanks if only the norm is not finite.
    std::optional<NonFiniteReport> non_finite;
  };

  /// `hyper_parameter_names`: the names of RankReport::hyper_parameters. `norms`: how many elements
  /// RankReport::norms has. `table`, `group` and `trace` (may be null) must outlive the vote.
  StepVote(ProcessGroup& group, const ParameterTable& table,
           std::vector<std::string> hyper_parameter_names, Trace* trace = nullptr,
           size_t norms = 1);

  /// Submits the report. Collective. If it throws, it throws on this rank only.
  void start(RankReport rank_report);
  /// Checks all ranks' reports; call it before any other ProcessGroup::all_gather_on_host(). Throws
  /// c10::Error, the same on every rank, that names the first problem and its ranks: misuse, step
  /// number, missing backward, reductions, gathers, edited gradients, the loss scale or a
  /// hyper-parameter. Non-finite gradients do not make it throw. Collective, blocking.
  Result finish();
  /// Replaces finish(), on all ranks, if they already know that they agree. Never blocks.
  void drop() { all_gather_.drop(); }

  /// Returns a hash of the report without this rank's own errors and gradients. Ranks that agree
  /// have equal hashes.
  static uint64_t hash(const RankReport& rank_report);

  /// Asks the user what to do (Options::ask_non_finite) and agrees on the answer. Called on every
  /// rank with the same report. If ranks answer differently, or the function throws on some, all
  /// ranks throw c10::Error that names them; a rank whose function threw rethrows its exception.
  /// Collective, blocking.
  NonFinite ask(const std::function<NonFinite(const NonFiniteReport&)>& ask_non_finite,
                const NonFiniteReport& report);
  /// Decides what to do about a step with `report`: asks the user's function if there is one, else
  /// follows the options. Returns normally if the step is to be skipped; otherwise throws
  /// c10::Error with describe(report). The outcome is the same on all ranks.
  void require_skip(const ResolvedOptions& options, const NonFiniteReport& report);

  int64_t bytes() const { return all_gather_.bytes() + answers_.bytes(); }

 private:
  enum Word : size_t {
    kStep,
    kBackwards,
    kHistory,
    kGathers,
    kNonFinite,
    kNonFiniteParameter,
    kMisuse,
    kGradientEdits,
    kLossScale,
    kNorms  // followed by the hyper-parameters
  };

  int64_t word(int rank, size_t index) const { return all_gather_.of(rank)[index]; }
  void require_equal(size_t index, const char* what, const char* remedy) const;
  void require_equal_number(size_t index, const std::string& what) const;
  [[noreturn]] void refuse_misuse() const;
  size_t hyper_parameter(size_t index) const { return kNorms + norms_ * NormSum::kWords + index; }
  NormSum norm_of(int rank, size_t index) const;
  std::optional<NonFiniteReport> find_non_finite() const;

  ProcessGroup& group_;
  const ParameterTable& table_;
  std::vector<std::string> names_;
  Trace* const trace_;
  const size_t norms_;
  RankReport mine_;  // as last passed to start()
  HostAllGather all_gather_;
  HostAllGather answers_;
};

/// Returns the error text of NonFinite::kStop: ranks and parameters, and what to do.
std::string describe(const NonFiniteReport& report);
/// Returns the part of describe() that names ranks and parameters.
std::string describe_gradients(const NonFiniteReport& report);

}  // namespace tessera::internal
