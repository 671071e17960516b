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
  /// What one rank knows before the step.
  struct RankReport {
    int64_t step = 0;        ///< the step it is about to make
    int64_t backwards = 0;   ///< its backwards since the last step
    int64_t history = 0;     ///< RollingHash of everything it reduced and dropped
    int64_t gathers = 0;     ///< RollingHash of the units it gathered with the others
    int64_t non_finite = 0;  ///< how many NaN or infinite gradient elements it produced itself
    int64_t non_finite_parameter = -1;  ///< the first parameter among them, -1 if none
    /// Its part of the norm of the scaled gradients, or of each group's; of one kind and number on
    /// all ranks.
    std::vector<NormSum> norms = {NormSum()};
    double loss_scale = 1.0;  ///< what the losses of its backwards were multiplied with
    /// The weights of the step over all ranks; unset if it has none. Computed alike on all ranks,
    /// and so is what gradients must be divided by for it, beside the loss scale.
    std::optional<double> weight = {};
    double divisor = 1.0;
    double gradient_scale() const { return loss_scale * divisor; }
    int64_t gradient_edits = 0;                  ///< in-place writes to `.grad` by the user
    std::vector<int64_t> hyper_parameters = {};  ///< in force, bit patterns of doubles
    std::string misuse;  ///< what it found wrong before the step, "<what>; <remedy>", or empty
    /// The last sentence of a refusal: what has become of the parameters. Alike on all ranks.
    const char* if_refused = "Nothing was applied.";
  };

  /// What all ranks know after it, equal on all.
  struct Result {
    /// Global norm of the mean gradient without gradient_scale; not finite if `non_finite` is set.
    double grad_norm = 0.0;
    /// The same of each of RankReport::norms.
    std::vector<double> norms;
    /// Set if a rank produced NaN or infinite elements, or the mean over ranks has some: the step
    /// must not be applied. Only in the second case parameters are "" and elements 0; the ranks are
    /// those whose part of the mean is not finite.
    std::optional<NonFiniteReport> non_finite;
  };

  /// `hyper_parameter_names` name RankReport::hyper_parameters, `norms` says how many
  /// RankReport::norms there are. `table`, `group` and `trace` (may be null) must outlive the vote.
  StepVote(ProcessGroup& group, const ParameterTable& table,
           std::vector<std::string> hyper_parameter_names, Trace* trace = nullptr,
           size_t norms = 1);

  /// Collective. Submits the report. Exceptions concern this rank only.
  void start(RankReport rank_report);
  /// Collective, blocking; before any other ProcessGroup::all_gather_on_host(). Checks all ranks'
  /// reports. Throws c10::Error, the same on every rank, naming the first problem and its ranks:
  /// misuse, step number, missing backward, reductions, gathers, edited gradients, the loss scale
  /// or a hyper-parameter. Non-finite gradients are no error here.
  Result finish();
  /// Instead of finish(), on all ranks, if they know by other means that they agree. Never blocks.
  void drop() { all_gather_.drop(); }

  /// A hash of the report, without this rank's own errors and gradients: equal on ranks that agree.
  static uint64_t hash(const RankReport& rank_report);

  /// Collective, blocking; called on every rank with the same report. Asks the user what to do
  /// (Options::ask_non_finite) and agrees on the answer. Where ranks answer differently, or the
  /// function throws on some, all ranks throw c10::Error that names them; a rank whose function
  /// threw rethrows its exception.
  NonFinite ask(const std::function<NonFinite(const NonFiniteReport&)>& ask_non_finite,
                const NonFiniteReport& report);
  /// What the user wants of a step with `report`: asks where there is a function for it. Returns if
  /// the step is to be skipped, and throws describe(report) if not. Equal on all ranks.
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
    kNorms  // then the hyper-parameters
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
  RankReport mine_;  // the last that was started
  HostAllGather all_gather_;
  HostAllGather answers_;
};

/// The error text of NonFinite::kStop: ranks and parameters, and what to do.
std::string describe(const NonFiniteReport& report);
/// Its first half: ranks and parameters.
std::string describe_gradients(const NonFiniteReport& report);

}  // namespace tessera::internal
