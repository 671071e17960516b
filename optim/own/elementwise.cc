#include "tessera/elementwise.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optim/own/examinations.h"
#include "tessera/optim/own/optimizer_update.h"

namespace tessera {
using namespace internal;

namespace {

using torch::optim::OptimizerOptions;

/// Returns why elementwise() refuses a form; "" if it does not.
std::string problem_of_elementwise(const ErasedForm& form) {
  if (form.states.size() > ElementUpdate::kMaxStates) {
    return absl::StrCat(form.name, ": states: got ", form.states.size(), ", expected at most ",
                        ElementUpdate::kMaxStates);
  }
  for (const auto& state : form.states) {
    if (state.sizes == nullptr) continue;
    return absl::StrCat(form.name, ": state '", state.name,
                        "': got sizes of its own, expected a value for each element; hand the "
                        "optimizer to whole_tensor()");
  }
  if (form.dimensions == 0) return "";
  return absl::StrCat(form.name, ": dimensions: got ", form.dimensions,
                      ", expected 0, any number; hand the optimizer to whole_tensor()");
}

}  // namespace

std::shared_ptr<const Algorithm> internal::make_elementwise(ErasedForm given,
                                                            const OptimizerOptions& options,
                                                            ElementwiseProbe probe) {
  const auto form = std::make_shared<const ErasedForm>(std::move(given));
  const auto examinations = std::make_shared<Examinations>(
      form, options, Trial{.find = &find_states, .probe = &probe_elementwise},
      problem_of_elementwise(*form));
  auto algorithm = std::make_shared<Algorithm>();
  algorithm->name = form->name;
  algorithm->options_name = form->options_name;
  algorithm->accepts = form->accepts;
  algorithm->hyper_parameters = fields_of(*form);

  const std::shared_ptr<const StatesInUse> found = examinations->states(options);
  std::vector<std::optional<at::ScalarType>> dtypes = found->dtypes;
  dtypes.resize(form->states.size());
  algorithm->note = "(elementwise:";
  // If the form has too many states, the algorithm gets none; problem_of_elementwise() reports the
  // problem.
  const bool has_states = form->states.size() <= ElementUpdate::kMaxStates;
  for (size_t i = 0; has_states && i < form->states.size(); ++i) {
    algorithm->states.push_back(
        {.state = {.name = form->states[i].name, .dtype = dtypes[i]},
         .is_used =
             [examinations, i](const OptimizerOptions& of) {
               const auto now = examinations->states(of);
               return now->problem.empty() && now->used[i] != 0;
             },
         .initial = [form, i](const OptimizerOptions& of) { return initial_state(*form, of, i); }});
    absl::StrAppend(&algorithm->note, " ", form->states[i].name);
    if (dtypes[i].has_value()) absl::StrAppend(&algorithm->note, " ", c10::toString(*dtypes[i]));
  }
  algorithm->note += ")";
  algorithm->conflict = [examinations, dtypes, form](const OptimizerOptions& of) {
    const auto now = examinations->states(of);
    for (size_t i = 0; now->problem.empty() && i < dtypes.size(); ++i) {
      if (now->used[i] == 0 || now->dtypes[i] == dtypes[i]) continue;
      return absl::StrCat(form->name, ": state '", form->states[i].name,
                          "': got options under which it has another dtype than under those that "
                          "elementwise() was given, expected the same; give elementwise() these");
    }
    return now->problem;
  };
  if (probe == ElementwiseProbe::kRun) {
    algorithm->probe = [examinations](const OptimizerOptions& of) {
      return examinations->probe(of);
    };
    if (found->problem.empty()) examinations->probe(options);
  }
  algorithm->make_update = [form, dtypes](size_t parameters) {
    return std::make_unique<OptimizerUpdate>(form, dtypes, parameters);
  };
  return algorithm;
}

}  // namespace tessera
