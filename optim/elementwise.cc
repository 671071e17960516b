#include "tessera/elementwise.h"

#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/optim/algorithm.h"
#include "tessera/optim/examinations.h"
#include "tessera/optim/optimizer_update.h"

namespace tessera {
using namespace internal;

namespace {

using torch::optim::OptimizerOptions;

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
                      .chooses_states = number.chooses_states,
                      .is_whole = number.is_whole && !number.is_switch});
  }
  return fields;
}

}  // namespace

std::shared_ptr<const Algorithm> internal::make_elementwise(ErasedForm given,
                                                            const OptimizerOptions& options,
                                                            ElementwiseProbe probe) {
  const auto form = std::make_shared<const ErasedForm>(std::move(given));
  const auto examinations = std::make_shared<Examinations>(form, options);
  auto algorithm = std::make_shared<Algorithm>();
  algorithm->name = form->name;
  algorithm->options_name = form->options_name;
  algorithm->accepts = form->accepts;
  algorithm->hyper_parameters = fields_of(*form);

  const std::shared_ptr<const StatesInUse> found = examinations->states(options);
  std::vector<std::optional<at::ScalarType>> dtypes = found->dtypes;
  dtypes.resize(form->states.size());
  algorithm->note = "(elementwise:";
  // A form with too many states makes an algorithm without; its problem is reported.
  const bool has_states = form->states.size() <= ElementUpdate::kMaxStates;
  for (size_t i = 0; has_states && i < form->states.size(); ++i) {
    algorithm->states.push_back({.state = {.name = form->states[i].name, .dtype = dtypes[i]},
                                 .is_used = [examinations, i](const OptimizerOptions& of) {
                                   const auto now = examinations->states(of);
                                   return now->problem.empty() && now->used[i] != 0;
                                 }});
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
