#include "tessera/optim/own/examinations.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

/// Returns what is wrong with `form` itself, judged without running the optimizer; "" if nothing.
std::string problem_of_form(const ErasedForm& form) {
  if (!is_word(form.name)) {
    return absl::StrCat("optimizer: name: got '", form.name,
                        "', expected letters, digits and _; set it in ", form.traits);
  }
  // A StateDict uses these names for other entries.
  std::set<std::string> taken = {"step", "master", "average"};
  for (const auto& state : form.states) {
    if (!is_word(state.name) || !taken.insert(state.name).second || state.of == nullptr) {
      return absl::StrCat(form.name, ": states: got '", state.name,
                          "', expected a name in letters, digits and _ that nothing else has, and "
                          "an accessor; 'step', 'master' and 'average' are taken");
    }
  }
  taken = {"lr"};
  for (const auto& number : form.numbers) {
    if (!is_word(number.name) || !taken.insert(number.name).second) {
      return absl::StrCat(form.name, ": numbers: got '", number.name,
                          "', expected a name in letters, digits and _ that nothing else has; 'lr' "
                          "need not be named");
    }
  }
  return "";
}

/// Returns a number that is equal for values of the same kind: Note [Numbers of the same kind].
double kind_of(const ErasedForm::Number& number, double value) {
  if (number.is_whole || std::isnan(value)) return value;
  return value > 0 ? 1 : value < 0 ? -1 : 0;
}

template <typename Map>
void make_room(Map& map) {
  // A map of this size is emptied, because a schedule may bring new numbers, and so a new entry, at
  // each step.
  constexpr size_t kMost = 64;
  if (map.size() >= kMost) map.clear();
}

}  // namespace

Examinations::Examinations(std::shared_ptr<const ErasedForm> form, const OptimizerOptions& options,
                           const Trial& trial, std::string problem)
    : form_(std::move(form)), trial_(trial), problem_of_form_(problem_of_form(*form_)) {
  if (problem_of_form_.empty()) problem_of_form_ = std::move(problem);
  const GeneratorKeeper keeper;
  at(options);
}

std::shared_ptr<const StatesInUse> Examinations::states(const OptimizerOptions& options) {
  const std::lock_guard lock(mutex_);
  return at(options).states;
}

std::string Examinations::probe(const OptimizerOptions& options) {
  const std::lock_guard lock(mutex_);
  Examination& of = at(options);
  if (std::exchange(of.is_of_kind, false)) of.states = examine(options);
  if (!of.states->problem.empty()) return of.states->problem;
  if (!of.probed.has_value()) of.probed = trial_.probe(*form_, options, *of.states);
  return *of.probed;
}

Examinations::Examination& Examinations::at(const OptimizerOptions& options) {
  numbers_.clear();
  for (const auto& number : form_->numbers) {
    numbers_.push_back(std::bit_cast<uint64_t>(number.read(options)));
  }
  if (const auto found = by_numbers_.find(numbers_); found != by_numbers_.end()) {
    return found->second;
  }
  Key kind;
  for (size_t i = 0; i < numbers_.size(); ++i) {
    kind.push_back(
        std::bit_cast<uint64_t>(kind_of(form_->numbers[i], std::bit_cast<double>(numbers_[i]))));
  }
  Examination fresh;
  const auto known = by_kind_.find(kind);
  fresh.is_of_kind = known != by_kind_.end() && is_made(options);
  fresh.states = fresh.is_of_kind ? known->second : examine(options);
  if (!fresh.is_of_kind && fresh.states->problem.empty()) {
    make_room(by_kind_);
    by_kind_[kind] = fresh.states;
  }
  make_room(by_numbers_);
  return by_numbers_[numbers_] = std::move(fresh);
}

std::shared_ptr<const StatesInUse> Examinations::examine(const OptimizerOptions& options) const {
  auto found = std::make_shared<StatesInUse>();
  if (problem_of_form_.empty()) {
    *found = trial_.find(*form_, options);
    if (!found->problem.empty()) {
      found->problem = absl::StrCat(form_->name, ": ", found->problem);
    }
  } else {
    found->problem = problem_of_form_;
  }
  return found;
}

/// Returns true if the optimizer's constructor accepts the options.
bool Examinations::is_made(const OptimizerOptions& options) const {
  const at::NoGradGuard no_grad;
  try {
    const std::vector<int64_t> sizes(static_cast<size_t>(std::max<int64_t>(1, form_->dimensions)),
                                     1);
    form_->make({at::zeros(sizes).requires_grad_()}, options);
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace tessera::internal
