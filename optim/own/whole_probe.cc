#include "tessera/optim/own/whole_probe.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/optim/own/optimizer_whole_update.h"
#include "tessera/optim/own/probe_run.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

std::vector<ProbeSample> whole_samples(const ErasedForm& form, at::ScalarType dtype) {
  const auto dimensions = static_cast<size_t>(form.dimensions);
  if (dimensions == 0) {
    return {probe_sample({16, 12}, dtype), probe_sample({12, 20}, dtype),
            probe_sample({130}, dtype)};
  }
  std::vector<int64_t> wide(dimensions, 3), tall(dimensions, 2);
  wide.front() = dimensions == 1 ? 130 : 16;
  wide.back() = dimensions == 1 ? 130 : 12;
  tall.front() = dimensions == 1 ? 33 : 12;
  tall.back() = dimensions == 1 ? 33 : 20;
  return {probe_sample(wide, dtype), probe_sample(tall, dtype)};
}

/// Returns how a state differs from the form; "" if it does not.
std::string problem_of_whole_state(const ErasedForm& form, const OptimizerOptions& options,
                                   const ProbeRun& run, const std::vector<ProbeSample>& samples,
                                   size_t state) {
  const ErasedForm::Tensor& field = form.states[state];
  for (size_t i = 0; i < samples.size(); ++i) {
    const at::Tensor& made = run.states[i][state];
    const at::IntArrayRef of = samples[i].values.sizes();
    if (field.sizes == nullptr && made.defined() != run.states[0][state].defined()) {
      return absl::StrCat("state '", field.name,
                          "': got it for some shapes of parameters only, expected it for all; say "
                          "by StateTensor::sizes which have it");
    }
    const StateSizes wanted =
        field.sizes != nullptr ? field.sizes(options, of) : StateSizes(of.vec());
    if (!made.defined() || (wanted.has_value() && made.sizes() == *wanted)) continue;
    return absl::StrCat("state '", field.name, "': got sizes ", c10::str(made.sizes()),
                        " for a parameter of ", c10::str(of), ", expected ",
                        wanted.has_value() ? c10::str(at::IntArrayRef(*wanted)) : "none",
                        "; say its sizes by StateTensor::sizes");
  }
  return "";
}

/// Runs the optimizer on parameters of `dtype`. Notes in `found` which states it keeps, and the
/// dtypes of states that do not have `dtype`; or what is wrong with the states.
void look_at_whole_states(const ErasedForm& form, const OptimizerOptions& options,
                          at::ScalarType dtype, StatesInUse& found) {
  const std::vector<ProbeSample> samples = whole_samples(form, dtype);
  const ProbeRun run = run_whole(form, options, samples);
  for (size_t i = 0; i < form.states.size(); ++i) {
    found.problem = problem_of_whole_state(form, options, run, samples, i);
    if (!found.problem.empty()) return;
    if (form.states[i].sizes != nullptr) found.used[i] = 1;
    for (size_t sample = 0; sample < samples.size(); ++sample) {
      const at::Tensor& made = run.states[sample][i];
      if (!made.defined()) continue;
      found.used[i] = 1;
      // This function runs once with kFloat and once with kDouble. A state that takes the
      // parameter's dtype has `dtype` both times, so its entry stays nullopt.
      if (made.scalar_type() != dtype) found.dtypes[i] = made.scalar_type();
    }
  }
}

/// Updates each sample as the owner of a parameter would.
ProbeRun run_as_owner(const ErasedForm& form, const OptimizerOptions& options,
                      const StatesInUse& in_use, const std::vector<ProbeSample>& samples) {
  const std::shared_ptr<const ErasedForm> not_owned(std::shared_ptr<void>(), &form);
  const OptimizerWholeUpdate update(not_owned);
  ProbeRun all;
  for (const ProbeSample& sample : samples) {
    const at::Tensor values = sample.values.clone();
    std::vector<at::Tensor> states(form.states.size());
    for (const WholeState& state : whole_states_of(form, options, values.sizes(), in_use)) {
      states[state.number] = at::zeros(state.sizes, state.dtype_over(values.scalar_type()));
    }
    std::vector<at::Tensor>& by_step = all.values.emplace_back();
    for (size_t step = 0; step < kProbeRates.size(); ++step) {
      const std::unique_ptr<OptimizerOptions> now = options.clone();
      now->set_lr(kProbeRates[step]);
      update.update(*now, {.values = values,
                           .gradient = sample.gradients[step].clone(),
                           .states = states,
                           .step = static_cast<int64_t>(step + 1)});
      by_step.push_back(values.flatten().clone());
    }
    all.states.push_back(std::move(states));
  }
  return all;
}

}  // namespace

std::vector<WholeState> whole_states_of(const ErasedForm& form, const OptimizerOptions& options,
                                        at::IntArrayRef sizes, const StatesInUse& in_use) {
  std::vector<WholeState> states;
  for (size_t i = 0; i < form.states.size(); ++i) {
    const ErasedForm::Tensor& field = form.states[i];
    StateSizes own;
    if (field.sizes != nullptr) {
      own = field.sizes(options, sizes);
    } else if (in_use.used[i] != 0) {
      own = sizes.vec();
    }
    if (!own.has_value()) continue;
    TORCH_CHECK(std::all_of(own->begin(), own->end(), [](int64_t size) { return size >= 0; }),
                form.name, ": state '", field.name, "': got sizes ", at::IntArrayRef(*own),
                " for a parameter of ", sizes, ", expected none below 0; correct its ",
                form.traits);
    states.push_back(
        {.number = i, .name = field.name, .sizes = *std::move(own), .dtype = in_use.dtypes[i]});
  }
  return states;
}

StatesInUse find_whole_states(const ErasedForm& form, const OptimizerOptions& options) {
  const char* const remedy =
      form.dimensions == 0 ? "; say by `dimensions` of its form which parameters it is for" : "";
  return find_states_by(form, remedy, [&](at::ScalarType dtype, StatesInUse& found) {
    look_at_whole_states(form, options, dtype, found);
  });
}

std::string probe_whole_tensor(const ErasedForm& form, const OptimizerOptions& options,
                               const StatesInUse& states) {
  return probe_by(
      form, options, states, [&](at::ScalarType dtype) { return whole_samples(form, dtype); },
      "only the owner of a parameter would draw them; compute them from the count",
      "depends on one parameter, its gradient and its states; a norm of all gradients is "
      "Options::max_grad_norm",
      [&](const std::vector<ProbeSample>& samples, const ProbeRun& expected) {
        return problem_of_form_in_use(form, expected,
                                      [&] { return run_as_owner(form, options, states, samples); });
      });
}

}  // namespace tessera::internal
