#include "tessera/whole_tensor.h"

#include <memory>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/optim/algorithm/algorithm.h"
#include "tessera/optim/own/examinations.h"
#include "tessera/optim/own/optimizer_whole_update.h"
#include "tessera/optim/own/whole_probe.h"

namespace tessera {
using namespace internal;

namespace {

std::string problem_of_whole_form(const ErasedForm& form) {
  if (form.dimensions >= 0) return "";
  return absl::StrCat(form.name, ": dimensions: got ", form.dimensions,
                      ", expected a number of dimensions, or 0 for any");
}

}  // namespace

std::shared_ptr<const Algorithm> internal::make_whole_tensor(
    ErasedForm given, const torch::optim::OptimizerOptions& options, OptimizerProbe probe) {
  using torch::optim::OptimizerOptions;
  const auto form = std::make_shared<const ErasedForm>(std::move(given));
  const auto examinations = std::make_shared<Examinations>(
      form, options, Trial{.find = &find_whole_states, .probe = &probe_whole_tensor},
      problem_of_whole_form(*form));
  auto algorithm = std::make_shared<Algorithm>();
  algorithm->name = form->name;
  algorithm->options_name = form->options_name;
  algorithm->accepts = form->accepts;
  algorithm->hyper_parameters = fields_of(*form);
  algorithm->note = "(whole tensor:";
  for (const auto& state : form->states) absl::StrAppend(&algorithm->note, " ", state.name);
  algorithm->note += ")";
  algorithm->conflict = [examinations](const OptimizerOptions& of) {
    return examinations->states(of)->problem;
  };
  if (probe == OptimizerProbe::kRun) {
    algorithm->probe = [examinations](const OptimizerOptions& of) {
      return examinations->probe(of);
    };
    if (examinations->states(options)->problem.empty()) examinations->probe(options);
  }
  algorithm->make_update = &make_gradient_copy;
  algorithm->make_whole = [form] { return std::make_unique<OptimizerWholeUpdate>(form); };
  algorithm->whole_states = [form, examinations](const OptimizerOptions& of,
                                                 at::IntArrayRef sizes) {
    const std::shared_ptr<const StatesInUse> found = examinations->states(of);
    TORCH_CHECK(found->problem.empty(), found->problem);
    return whole_states_of(*form, of, sizes, *found);
  };
  algorithm->dimensions = form->dimensions;
  return algorithm;
}

}  // namespace tessera
