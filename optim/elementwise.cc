#include "tessera/elementwise.h"

#include <algorithm>
#include <cctype>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string_view>

#include <absl/strings/str_cat.h>

#include "tessera/optim/algorithm.h"
#include "tessera/optim/elementwise_probe.h"
#include "tessera/optim/optimizer_update.h"

namespace tessera {
using namespace internal;

namespace {

using torch::optim::OptimizerOptions;

bool is_word(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_';
  });
}

/// What forbids a form whatever the optimizer does; "" if nothing.
std::string problem_of_form(const ErasedForm& form) {
  if (!is_word(form.name)) {
    return absl::StrCat("elementwise: name: got '", form.name,
                        "', expected letters, digits and _; set it in ElementwiseTraits");
  }
  if (form.states.size() > ElementUpdate::kMaxStates) {
    return absl::StrCat(form.name, ": states: got ", form.states.size(), ", expected at most ",
                        ElementUpdate::kMaxStates);
  }
  // What a StateDict calls otherwise.
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

/// What runs of an optimizer have shown, for each set of numbers that was asked for. The learning
/// rate does not count: schedules change it at each step. Used by any thread.
class Examinations {
 public:
  explicit Examinations(std::shared_ptr<const ErasedForm> form)
      : form_(std::move(form)), problem_of_form_(problem_of_form(*form_)) {}

  StatesInUse states(const OptimizerOptions& options) {
    const std::lock_guard lock(mutex_);
    return at(options).states;
  }
  bool uses(const OptimizerOptions& options, size_t state) {
    const std::lock_guard lock(mutex_);
    const StatesInUse& states = at(options).states;
    return states.problem.empty() && states.used[state] != 0;
  }
  std::string probe(const OptimizerOptions& options) {
    const std::lock_guard lock(mutex_);
    Examination& of = at(options);
    if (!of.probed.has_value()) of.probed = probe_elementwise(*form_, options, of.states);
    return *of.probed;
  }

 private:
  struct Examination {
    StatesInUse states;
    std::optional<std::string> probed;
  };

  Examination& at(const OptimizerOptions& options) {
    numbers_.clear();
    for (const auto& number : form_->numbers) numbers_.push_back(number.read(options));
    if (const auto found = by_numbers_.find(numbers_); found != by_numbers_.end()) {
      return found->second;
    }
    constexpr size_t kMost = 64;  // where a schedule changes other numbers, too
    if (by_numbers_.size() >= kMost) by_numbers_.clear();
    Examination& fresh = by_numbers_[numbers_];
    if (problem_of_form_.empty()) {
      fresh.states = find_states(*form_, options);
      if (!fresh.states.problem.empty()) {
        fresh.states.problem = absl::StrCat(form_->name, ": ", fresh.states.problem);
      }
    } else {
      fresh.states.problem = problem_of_form_;
    }
    return fresh;
  }

  std::shared_ptr<const ErasedForm> form_;
  std::string problem_of_form_;
  std::mutex mutex_;
  std::vector<double> numbers_;
  std::map<std::vector<double>, Examination> by_numbers_;
};

std::vector<HyperParameterField> fields_of(const ErasedForm& form) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<HyperParameterField> fields = {
      {.name = "lr",
       .read = [](const OptimizerOptions& options) { return options.get_lr(); },
       .write = [](OptimizerOptions& options, double value) { options.set_lr(value); },
       .end = kInfinity}};
  for (const auto& number : form.numbers) {
    fields.push_back({.name = number.name,
                      .read = number.read,
                      .write = number.write,
                      .end = number.is_switch ? 2 : kInfinity,
                      .begin = number.is_switch ? 0 : -kInfinity,
                      .is_switch = number.is_switch,
                      .chooses_states = number.chooses_states});
  }
  return fields;
}

}  // namespace

std::shared_ptr<const Algorithm> internal::make_elementwise(ErasedForm given,
                                                            const OptimizerOptions& options,
                                                            ElementwiseProbe probe) {
  const auto form = std::make_shared<const ErasedForm>(std::move(given));
  const auto examinations = std::make_shared<Examinations>(form);
  auto algorithm = std::make_shared<Algorithm>();
  algorithm->name = form->name;
  algorithm->options_name = form->options_name;
  algorithm->accepts = form->accepts;
  algorithm->hyper_parameters = fields_of(*form);

  const StatesInUse found = examinations->states(options);
  std::vector<std::optional<at::ScalarType>> dtypes = found.dtypes;
  dtypes.resize(form->states.size());
  algorithm->note = "(elementwise:";
  // A form with too many states makes an algorithm without; its problem is reported.
  const bool has_states = form->states.size() <= ElementUpdate::kMaxStates;
  for (size_t i = 0; has_states && i < form->states.size(); ++i) {
    algorithm->states.push_back({.state = {.name = form->states[i].name, .dtype = dtypes[i]},
                                 .is_used = [examinations, i](const OptimizerOptions& of) {
                                   return examinations->uses(of, i);
                                 }});
    absl::StrAppend(&algorithm->note, " ", form->states[i].name);
    if (dtypes[i].has_value()) absl::StrAppend(&algorithm->note, " ", c10::toString(*dtypes[i]));
  }
  algorithm->note += ")";
  algorithm->conflict = [examinations, dtypes, form](const OptimizerOptions& of) {
    const StatesInUse now = examinations->states(of);
    for (size_t i = 0; now.problem.empty() && i < dtypes.size(); ++i) {
      if (now.used[i] == 0 || now.dtypes[i] == dtypes[i]) continue;
      return absl::StrCat(form->name, ": state '", form->states[i].name,
                          "': got options under which it has another dtype than under those that "
                          "elementwise() was given, expected the same; give elementwise() these");
    }
    return now.problem;
  };
  if (probe == ElementwiseProbe::kRun) {
    algorithm->probe = [examinations](const OptimizerOptions& of) {
      return examinations->probe(of);
    };
    if (found.problem.empty()) examinations->probe(options);
  }
  algorithm->make_update = [form, dtypes](size_t parameters) {
    return std::make_unique<OptimizerUpdate>(form, dtypes, parameters);
  };
  return algorithm;
}

}  // namespace tessera
