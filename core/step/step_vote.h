#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/layout/parameter_table.h"
#include "tessera/core/step/ballot.h"
#include "tessera/core/step/exact_sum.h"

namespace tessera {

/// The one small collective per step in which all ranks agree to commit it. Every rank reads every
/// rank's paper and reaches the same verdict: the step is committed on all ranks or refused on all
/// with the same text.
class StepVote {
 public:
  /// What one rank knows before the step.
  struct Paper {
    int64_t step = 0;        ///< the step it is about to make
    int64_t backwards = 0;   ///< its backwards since the last step
    int64_t history = 0;     ///< RollingHash of everything it reduced and dropped
    int64_t non_finite = 0;  ///< how many NaN or infinite gradient elements it produced itself
    int64_t non_finite_parameter = -1;  ///< the first parameter among them, -1 if none
    ExactSum squares;                   ///< its part of the squared gradient norm
    int64_t gradient_edits = 0;         ///< in-place writes to `.grad` by the user
    std::string misuse;  ///< what it found wrong before the step, "<what>; <remedy>", or empty
  };

  /// `hyper_parameter_names` name the words every rank passes to agree(). `table` and `group` must
  /// outlive the vote.
  StepVote(ProcessGroup& group, const ParameterTable& table,
           std::vector<std::string> hyper_parameter_names);

  /// Collective, blocking. Returns the global gradient norm when the step may be committed. Throws
  /// c10::Error, the same on every rank, naming the first problem and its ranks (misuse, step
  /// number, missing backward, reductions, edited gradients, a hyper-parameter) or the non-finite
  /// gradient's rank and parameter.
  double agree(const Paper& paper, const std::vector<int64_t>& hyper_parameters);

  int64_t bytes() const { return ballot_.bytes(); }

 private:
  enum Word : size_t {
    kStep,
    kBackwards,
    kHistory,
    kNonFinite,
    kNonFiniteParameter,
    kMisuse,
    kGradientEdits,
    kSquares,
    kHyperParameters = kSquares + ExactSum::kWords
  };

  int64_t word(int rank, size_t index) const { return ballot_.of(rank)[index]; }
  void require_equal(size_t index, const char* what, const char* remedy) const;
  [[noreturn]] void refuse_misuse(const std::string& misuse) const;

  ProcessGroup& group_;
  const ParameterTable& table_;
  std::vector<std::string> names_;
  Ballot ballot_;
};

}  // namespace tessera
