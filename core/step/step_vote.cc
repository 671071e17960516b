#include "tessera/core/step/step_vote.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/text_exchange.h"
#include "tessera/core/number_text.h"

namespace tessera {

StepVote::StepVote(ProcessGroup& group, const ParameterTable& table,
                   std::vector<std::string> hyper_parameter_names)
    : group_(group),
      table_(table),
      names_(std::move(hyper_parameter_names)),
      ballot_(group, static_cast<int64_t>(kHyperParameters + names_.size())) {}

void StepVote::require_equal(size_t index, const char* what, const char* remedy) const {
  for (int rank = 1; rank < group_.size(); ++rank) {
    TORCH_CHECK(word(rank, index) == word(0, index), "[step] ", what, " differs: rank 0 has ",
                word(0, index), ", rank ", rank, " has ", word(rank, index), "; ", remedy,
                ". Nothing was applied.");
  }
}

// The texts travel only now that all ranks know that there is one.
void StepVote::refuse_misuse(const std::string& misuse) const {
  const std::vector<std::string> problems = exchange_texts(group_, misuse, "misuse");
  std::string message;
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    absl::StrAppend(&message, message.empty() ? "" : "\n", "[step] rank ", rank, ": ",
                    problems[rank]);
  }
  TORCH_CHECK(false, message, ". Nothing was applied.");
}

double StepVote::agree(const Paper& paper, const std::vector<int64_t>& hyper_parameters) {
  TORCH_INTERNAL_ASSERT(hyper_parameters.size() == names_.size());
  const std::span<int64_t> mine = ballot_.mine();
  mine[kStep] = paper.step;
  mine[kBackwards] = paper.backwards;
  mine[kHistory] = paper.history;
  mine[kNonFinite] = paper.non_finite;
  mine[kNonFiniteParameter] = paper.non_finite_parameter;
  mine[kMisuse] = paper.misuse.empty() ? 0 : 1;
  mine[kGradientEdits] = paper.gradient_edits;
  paper.squares.store(mine.subspan<kSquares, ExactSum::kWords>());
  std::copy(hyper_parameters.begin(), hyper_parameters.end(), mine.begin() + kHyperParameters);

  ballot_.exchange("vote of the step");

  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kMisuse) != 0) refuse_misuse(paper.misuse);
  }

  require_equal(kStep, "the number of steps made",
                "call engine->step() equally often on all ranks");

  std::vector<int> idle;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kBackwards) == 0) idle.push_back(rank);
  }
  TORCH_CHECK(idle.empty(), "[step] rank ", absl::StrJoin(idle, ", "),
              " called step() without a backward since the last step; call loss.backward() first. "
              "Nothing was applied.");

  require_equal(kHistory, "what was reduced and dropped (a hash of it)",
                "call backward, no_sync and zero_grad alike on all ranks; zero_grad() on all ranks "
                "lets training go on");
  require_equal(kGradientEdits, "how often .grad was written in place since backward",
                "edit gradients alike on all ranks, or use Options::max_grad_norm; zero_grad() on "
                "all ranks lets training go on");

  for (size_t i = 0; i < names_.size(); ++i) {
    const size_t index = kHyperParameters + i;
    for (int rank = 1; rank < group_.size(); ++rank) {
      TORCH_CHECK(word(rank, index) == word(0, index), "[step] hyper-parameter ", names_[i],
                  " differs: rank 0 has ", number_text(std::bit_cast<double>(word(0, index))),
                  ", rank ", rank, " has ", number_text(std::bit_cast<double>(word(rank, index))),
                  "; set it alike on all ranks. Nothing was applied.");
    }
  }

  std::vector<std::string> culprits;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kNonFinite) == 0) continue;
    const auto parameter = static_cast<size_t>(word(rank, kNonFiniteParameter));
    culprits.push_back(absl::StrCat("rank ", rank, " produced ", word(rank, kNonFinite),
                                    " NaN or infinite elements, first in '", table_[parameter].name,
                                    "'"));
  }
  TORCH_CHECK(culprits.empty(), "[step] non-finite gradient: ", absl::StrJoin(culprits, "; "),
              ". Nothing was applied; engine->zero_grad() drops these gradients.");

  ExactSum squares;
  for (int rank = 0; rank < group_.size(); ++rank) {
    squares.merge(ExactSum::load(ballot_.of(rank).subspan<kSquares, ExactSum::kWords>()));
  }
  const double norm = std::sqrt(squares.value());
  TORCH_CHECK(
      std::isfinite(norm),
      "[step] non-finite gradient: every rank's gradient is finite, the norm of their mean is not "
      "(",
      norm,
      "). Nothing was applied; scale the loss down, engine->zero_grad() drops these "
      "gradients.");
  return norm;
}

}  // namespace tessera
