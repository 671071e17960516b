#include "tessera/core/step/step_vote.h"

#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/numbers/number_text.h"
#include "tessera/core/numbers/rolling_hash.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/sched/trace_span.h"
#include "tessera/process_group.h"

namespace tessera::internal {
namespace {

constexpr const char* kNothingApplied =
    "Nothing was applied; engine->zero_grad() drops these gradients.";

// What a rank sends in place of a value of NonFinite if the user's function threw.
constexpr int64_t kThrew = -1;

std::string answer_name(int64_t word) {
  if (word == static_cast<int64_t>(NonFinite::kStop)) return "kStop";
  if (word == static_cast<int64_t>(NonFinite::kSkip)) return "kSkip";
  return absl::StrCat("no answer (", word, ")");
}

}  // namespace

StepVote::StepVote(ProcessGroup& group, const ParameterTable& table,
                   std::vector<std::string> hyper_parameter_names, Trace* trace, size_t norms)
    : group_(group),
      table_(table),
      names_(std::move(hyper_parameter_names)),
      trace_(trace),
      norms_(norms),
      all_gather_(group, static_cast<int64_t>(hyper_parameter(names_.size()))),
      answers_(group, /*words=*/1) {}

void StepVote::require_equal(size_t index, const char* what, const char* remedy) const {
  for (int rank = 1; rank < group_.size(); ++rank) {
    TORCH_CHECK(word(rank, index) == word(0, index), "[step] ", what, " differs: rank 0 has ",
                word(0, index), ", rank ", rank, " has ", word(rank, index), "; ", remedy, ". ",
                mine_.if_refused);
  }
}

/// Like require_equal(), for words that are bit patterns of doubles.
void StepVote::require_equal_number(size_t index, const std::string& what) const {
  for (int rank = 1; rank < group_.size(); ++rank) {
    TORCH_CHECK(word(rank, index) == word(0, index), "[step] ", what, " differs: rank 0 has ",
                number_text(std::bit_cast<double>(word(0, index))), ", rank ", rank, " has ",
                number_text(std::bit_cast<double>(word(rank, index))),
                "; set it alike on all ranks. ", mine_.if_refused);
  }
}

// Throws an error that lists every rank's misuse. Ranks exchange the texts only here, once all
// ranks know that some rank has reported a misuse.
void StepVote::refuse_misuse() const {
  const std::vector<std::string> problems = group_.all_gather_bytes(mine_.misuse, "misuse");
  TORCH_CHECK(false, refusal_text(problems, "step"), ". ", mine_.if_refused);
}

void StepVote::start(RankReport rank_report) {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  TORCH_INTERNAL_ASSERT(rank_report.hyper_parameters.size() == names_.size() &&
                        rank_report.norms.size() == norms_);
  const std::span<int64_t> mine = all_gather_.mine();
  mine[kStep] = rank_report.step;
  mine[kBackwards] = rank_report.backwards;
  mine[kHistory] = rank_report.history;
  mine[kGathers] = rank_report.gathers;
  mine[kNonFinite] = rank_report.non_finite;
  mine[kNonFiniteParameter] = rank_report.non_finite_parameter;
  mine[kMisuse] = rank_report.misuse.empty() ? 0 : 1;
  mine[kGradientEdits] = rank_report.gradient_edits;
  mine[kLossScale] = std::bit_cast<int64_t>(rank_report.loss_scale);
  for (size_t i = 0; i < norms_; ++i) {
    const auto words = mine.subspan(kNorms + i * NormSum::kWords);
    rank_report.norms[i].store(words.first<NormSum::kWords>());
  }
  absl::c_copy(rank_report.hyper_parameters, mine.subspan(hyper_parameter(0)).begin());
  mine_ = std::move(rank_report);
  all_gather_.start("vote of the step");
}

StepVote::Result StepVote::finish() {
  const TraceSpan span(trace_, TraceTrack::kVote, "vote");
  all_gather_.finish();
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kMisuse) != 0) refuse_misuse();
  }

  require_equal(kStep, "the number of steps made",
                "call engine->step() equally often on all ranks");

  std::vector<int> idle;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kBackwards) == 0) idle.push_back(rank);
  }
  TORCH_CHECK(idle.empty(), "[step] rank ", absl::StrJoin(idle, ", "),
              " called step() without a backward since the last step; call loss.backward() first. ",
              mine_.if_refused);

  require_equal(kHistory, "what was reduced and dropped (a hash of it)",
                "call backward, no_sync and zero_grad alike on all ranks; zero_grad() on all ranks "
                "lets training go on");
  require_equal(
      kGathers, "which units were gathered, and in which order (a hash of it)",
      "ranks that cannot read each other's memory gather together, so touch parameters in "
      "the same order on all ranks; what was computed since the last step is wrong");
  require_equal(kGradientEdits, "how often .grad was written in place since backward",
                "edit gradients alike on all ranks, or use Options::max_grad_norm; zero_grad() on "
                "all ranks lets training go on");

  require_equal_number(kLossScale, "the loss scale");
  for (size_t i = 0; i < names_.size(); ++i) {
    require_equal_number(hyper_parameter(i), "hyper-parameter " + names_[i]);
  }

  Result result{.grad_norm = 0.0, .norms = {}, .non_finite = find_non_finite()};
  NormSum total(mine_.norms.front().p());
  for (size_t i = 0; i < norms_; ++i) {
    NormSum sum(total.p());
    for (int rank = 0; rank < group_.size(); ++rank) sum.merge(norm_of(rank, i));
    result.norms.push_back(sum.norm() / mine_.gradient_scale());
    total.merge(sum);
  }
  result.grad_norm = total.norm() / mine_.gradient_scale();
  // A rank's part of the mean depends on how gradients are split, so use the norm over all ranks.
  const bool is_finite =
      std::isfinite(result.grad_norm) &&
      absl::c_all_of(result.norms, [](double norm) { return std::isfinite(norm); });
  if (!is_finite && !result.non_finite.has_value()) {
    result.non_finite = NonFiniteReport{.step = mine_.step,
                                        .loss_scale = mine_.loss_scale,
                                        .gradients = {{NonFiniteGradient::kAllRanks, "", 0}}};
  }
  if (result.non_finite.has_value() && std::isfinite(result.grad_norm)) {
    result.grad_norm = std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

NormSum StepVote::norm_of(int rank, size_t index) const {
  const auto words = all_gather_.of(rank).subspan(kNorms + index * NormSum::kWords);
  return NormSum::load(mine_.norms.front().p(), words.first<NormSum::kWords>());
}

std::optional<NonFiniteReport> StepVote::find_non_finite() const {
  NonFiniteReport report{.step = mine_.step, .loss_scale = mine_.loss_scale, .gradients = {}};
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (word(rank, kNonFinite) == 0) continue;
    const auto parameter = static_cast<size_t>(word(rank, kNonFiniteParameter));
    report.gradients.push_back({rank, table_[parameter].name, word(rank, kNonFinite)});
  }
  if (report.gradients.empty()) {
    for (int rank = 0; rank < group_.size(); ++rank) {
      bool is_finite = true;
      for (size_t i = 0; i < norms_; ++i) {
        is_finite = is_finite && std::isfinite(norm_of(rank, i).norm());
      }
      if (!is_finite) report.gradients.push_back({rank, "", 0});
    }
  }
  if (report.gradients.empty()) return std::nullopt;
  return report;
}

NonFinite StepVote::ask(const std::function<NonFinite(const NonFiniteReport&)>& ask_non_finite,
                        const NonFiniteReport& report) {
  std::exception_ptr thrown;
  std::string text;
  NonFinite answer = NonFinite::kStop;
  try {
    answer = ask_non_finite(report);
  } catch (const std::exception& error) {
    thrown = std::current_exception();
    text = error_text(error);
  } catch (...) {
    thrown = std::current_exception();
    text = "an exception of unknown type";
  }
  answers_.mine()[0] = thrown != nullptr ? kThrew : static_cast<int64_t>(answer);
  answers_.exchange("answers of ask_non_finite");

  std::vector<std::string> answers;
  bool has_thrown = false;
  bool differs = false;
  for (int rank = 0; rank < group_.size(); ++rank) {
    const int64_t word = answers_.of(rank)[0];
    has_thrown = has_thrown || word == kThrew;
    differs = differs || word != answers_.of(0)[0];
    answers.push_back(absl::StrCat("rank ", rank, " ", answer_name(word)));
  }
  if (has_thrown) {
    const std::vector<std::string> texts = group_.all_gather_bytes(text, "ask_non_finite");
    if (thrown != nullptr) std::rethrow_exception(thrown);
    std::string message;
    for (size_t rank = 0; rank < texts.size(); ++rank) {
      if (answers_.of(static_cast<int>(rank))[0] != kThrew) continue;
      absl::StrAppend(&message, message.empty() ? "" : "\n", "[step] rank ", rank,
                      ": Options::ask_non_finite threw: ", texts[rank]);
    }
    TORCH_CHECK(false, message, ". ", kNothingApplied);
  }
  TORCH_CHECK(!differs, "[step] Options::ask_non_finite: got different answers (",
              absl::StrJoin(answers, ", "),
              "), expected one; decide by the report alone, which is the same on all ranks. ",
              kNothingApplied);
  return answer;
}

void StepVote::require_skip(const ResolvedOptions& options, const NonFiniteReport& report) {
  const NonFinite answer =
      options.ask_non_finite ? ask(options.ask_non_finite, report) : options.on_non_finite;
  TORCH_CHECK(answer == NonFinite::kSkip, describe(report));
}

uint64_t StepVote::hash(const RankReport& rank_report) {
  RollingHash hash;
  const auto add = [&hash](int64_t word) { hash.record(RollingHash::Event::kStep, word); };
  add(rank_report.step);
  add(rank_report.backwards > 0 ? 1 : 0);
  add(rank_report.history);
  add(rank_report.gathers);
  add(rank_report.gradient_edits);
  add(std::bit_cast<int64_t>(rank_report.loss_scale));
  for (const int64_t word : rank_report.hyper_parameters) add(word);
  return static_cast<uint64_t>(hash.value());
}

namespace {

std::string producer(const NonFiniteGradient& gradient) {
  return gradient.rank == NonFiniteGradient::kAllRanks ? "the ranks together"
                                                       : absl::StrCat("rank ", gradient.rank);
}

}  // namespace

std::string describe_gradients(const NonFiniteReport& report) {
  const std::string scaled =
      report.loss_scale == 1.0 ? ""
                               : absl::StrCat(" under loss scale ", number_text(report.loss_scale));
  std::vector<std::string> culprits;
  for (const NonFiniteGradient& gradient : report.gradients) {
    culprits.push_back(gradient.parameter.empty()
                           ? "every rank's gradient is finite, the norm of their mean is not"
                           : absl::StrCat(producer(gradient), " produced ", gradient.elements,
                                          " NaN or infinite elements, first in '",
                                          gradient.parameter, "'"));
    if (gradient.parameter.empty()) break;  // the other entries name no parameter either
  }
  return absl::StrCat("[step] non-finite gradient", scaled, ": ", absl::StrJoin(culprits, "; "));
}

std::string describe(const NonFiniteReport& report) {
  const bool is_mean = !report.gradients.empty() && report.gradients[0].parameter.empty();
  return is_mean ? absl::StrCat(describe_gradients(report),
                                ". Nothing was applied; scale the loss down, engine->zero_grad() "
                                "drops these gradients.")
                 : absl::StrCat(describe_gradients(report), ". ", kNothingApplied);
}

}  // namespace tessera::internal
