#include "tessera/optim/own/optimizer_step.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/layout/readable.h"

namespace tessera::internal {

namespace {

void require_fit(const ErasedForm& form, size_t state, int64_t step, const at::Tensor& made,
                 const at::Tensor& kept) {
  const std::string& name = form.states[state].name;
  TORCH_CHECK(kept.defined(), "[optim] ", form.name, ": got the state '", name, "' in update ",
              step, " of a parameter, expected none with these options, as in the first ones; ",
              "make states in the first step");
  TORCH_CHECK(made.sizes() == kept.sizes() && made.scalar_type() == kept.scalar_type(), "[optim] ",
              form.name, ": got the state '", name, "' with sizes ", made.sizes(), " of ",
              made.scalar_type(), ", expected ", kept.sizes(), " of ", kept.scalar_type(),
              ", as in the first updates; keep them");
}

/// Called if the optimizer has no state number `state` after step number `step`. Throws if the
/// optimizer was given this state before the step: an optimizer drops a state to begin it anew, but
/// the engine would give the old state to the next step.
void require_kept(const ErasedForm& form, size_t state, int64_t step, const at::Tensor& kept) {
  TORCH_CHECK(step == 1 || !kept.defined(), "[optim] ", form.name, ": got no state '",
              form.states[state].name, "' after update ", step,
              " of a parameter, expected the one that it had before; fill it instead of dropping ",
              "it");
}

}  // namespace

void run_optimizer_step(const ErasedForm& form, const torch::optim::OptimizerOptions& options,
                        int64_t step, const at::Tensor& values,
                        const std::vector<at::Tensor>& kept_states) {
  const at::Tensor memory = values.detach();
  const std::unique_ptr<torch::optim::Optimizer> optimizer = form.make({values}, options);
  auto& of_parameters = optimizer->state();
  void* const key = values.unsafeGetTensorImpl();
  if (step > 1 && (form.write_step || !form.states.empty())) {
    std::unique_ptr<ErasedForm::State> state = form.make_state();
    bool has_any = false;
    for (size_t i = 0; i < kept_states.size(); ++i) {
      if (!kept_states[i].defined()) continue;
      form.states[i].of(*state) = kept_states[i];
      has_any = true;
    }
    if (form.write_step) form.write_step(*state, step - 1);
    if (has_any || form.write_step) of_parameters[key] = std::move(state);
  }
  optimizer->step();
  const at::Tensor updated = in_memory(values.detach());
  // If the optimizer has moved the values to other memory by set_data(), copy them back.
  if (updated.data_ptr() != memory.data_ptr()) memory.copy_(updated);

  const auto found = of_parameters.find(key);
  if (found == of_parameters.end()) {
    for (size_t i = 0; i < kept_states.size(); ++i) {
      require_kept(form, i, step, kept_states[i]);
    }
    return;
  }
  TORCH_CHECK(form.is_state(*found->second), "[optim] ", form.name,
              ": got a state of another type than its ", form.traits, " say, expected that one");
  // Pairs of a new tensor and the kept memory that it is copied to.
  std::vector<std::pair<at::Tensor, at::Tensor>> replaced;
  for (size_t i = 0; i < kept_states.size(); ++i) {
    const at::Tensor made = in_memory(form.states[i].of(*found->second));
    const at::Tensor& kept = kept_states[i];
    if (!made.defined()) require_kept(form, i, step, kept);
    if (!made.defined()) continue;
    require_fit(form, i, step, made, kept);
    if (made.data_ptr() == kept.data_ptr() && made.strides() == kept.strides()) continue;
    // `made` may lie in the memory of another kept state, for example if the optimizer swaps two
    // states. Then it is cloned before anything is copied.
    const bool is_kept = std::any_of(
        kept_states.begin(), kept_states.end(),
        [&made](const at::Tensor& other) { return other.defined() && made.is_alias_of(other); });
    replaced.emplace_back(is_kept ? made.clone() : made, kept);
  }
  for (const auto& [from, to] : replaced) to.copy_(from);
}

}  // namespace tessera::internal
