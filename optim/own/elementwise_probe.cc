#include "tessera/optim/own/elementwise_probe.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <absl/strings/str_cat.h>

#include "tessera/optim/own/probe_run.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

at::Tensor present_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

/// Returns why a state cannot be cut; "" if it can.
std::string problem_of_state(const std::string& name, const ProbeRun& run,
                             const std::vector<ProbeSample>& samples, size_t state) {
  for (size_t i = 0; i < samples.size(); ++i) {
    const at::Tensor& tensor = run.states[i][state];
    const at::IntArrayRef sizes = samples[i].values.sizes();
    if (tensor.defined() != run.states[0][state].defined()) {
      return absl::StrCat("state '", name,
                          "': got it for some shapes of parameters only, expected "
                          "the same states for all, as of an update that is elementwise; give "
                          "parameters that need another rule to another group of the plan");
    }
    if (!tensor.defined() || tensor.sizes() == sizes) continue;
    if (tensor.numel() == 1) {
      return absl::StrCat("state '", name,
                          "': got one value for a whole parameter, expected one "
                          "for each element; name a count of updates as `step`, and compute other "
                          "numbers from the count");
    }
    return absl::StrCat(
        "state '", name, "': got sizes ", c10::str(tensor.sizes()), " for a parameter of ",
        c10::str(sizes),
        ", expected the parameter's; ranks can only split states that have a value "
        "for each element: hand the optimizer to whole_tensor(), or train such parameters with "
        "another algorithm");
  }
  return "";
}

/// Finds the states of parameters of `dtype`.
void look_at_states(const ErasedForm& form, const OptimizerOptions& options, at::ScalarType dtype,
                    StatesInUse& found) {
  const std::vector<ProbeSample> samples = probe_samples(dtype);
  const ProbeRun run = run_whole(form, options, samples);
  for (size_t i = 0; i < form.states.size(); ++i) {
    found.problem = problem_of_state(form.states[i].name, run, samples, i);
    if (!found.problem.empty()) return;
    const at::Tensor& tensor = run.states[0][i];
    if (!tensor.defined()) continue;
    found.used[i] = 1;
    // A state that follows its parameter has the parameter's dtype in both runs.
    if (tensor.scalar_type() != dtype) found.dtypes[i] = tensor.scalar_type();
  }
}

}  // namespace

GeneratorKeeper::GeneratorKeeper()
    : generator_(at::detail::getDefaultCPUGenerator()), state_(present_state(generator_)) {}

GeneratorKeeper::~GeneratorKeeper() {
  if (!has_drawn()) return;
  const std::lock_guard lock(generator_.mutex());
  generator_.set_state(state_);
}

bool GeneratorKeeper::has_drawn() const { return !present_state(generator_).equal(state_); }

bool GeneratorKeeper::is_drawn_from_by(const std::function<void()>& run) const {
  constexpr int kTries = 50;
  if (!has_drawn()) return false;
  for (int i = 0; i < kTries; ++i) {
    const at::Tensor before = present_state(generator_);
    run();
    if (present_state(generator_).equal(before)) return false;
  }
  return true;
}

StatesInUse find_states(const ErasedForm& form, const OptimizerOptions& options) {
  const size_t count = form.states.size();
  StatesInUse found{.problem = "",
                    .used = std::vector<uint8_t>(count, 0),
                    .dtypes = std::vector<std::optional<at::ScalarType>>(count)};
  const at::NoGradGuard no_grad;
  try {
    look_at_states(form, options, at::kFloat, found);
  } catch (const FormProblem& problem) {
    found.problem = problem.text;
  } catch (...) {
    found.problem = thrown_in_probe();
  }
  if (!found.problem.empty()) return found;
  try {
    look_at_states(form, options, at::kDouble, found);
  } catch (...) {
    found.takes_double = false;
  }
  return found;
}

std::string probe_elementwise(const ErasedForm& form, const OptimizerOptions& options,
                              const StatesInUse& states) {
  constexpr const char* kElsewhere =
      "; train its parameters with another algorithm, by a group of the plan";
  constexpr const char* kWhole =
      "; hand it to whole_tensor(), or train its parameters with another algorithm, by a group of "
      "the plan";
  const at::NoGradGuard no_grad;
  const GeneratorKeeper keeper;
  try {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
      if (dtype == at::kDouble && !states.takes_double) break;
      const std::vector<ProbeSample> samples = probe_samples(dtype);
      const ProbeRun expected = run_whole(form, options, samples);
      if (keeper.is_drawn_from_by([&] { run_whole(form, options, samples); })) {
        return absl::StrCat(form.name,
                            ": got a step that draws random numbers, expected none: slices would "
                            "draw others than whole parameters",
                            kElsewhere);
      }
      if (!changes_something(expected, samples)) {
        return absl::StrCat(form.name,
                            ": got no change of any value in three steps, expected an update; see "
                            "whether step() reads the gradients of param_groups()");
      }
      const ProbeRun alone = run_alone(form, options, samples);
      if (!have_equal_values(alone, expected)) {
        return absl::StrCat(form.name,
                            ": got an update that depends on other parameters, expected one that "
                            "is elementwise; a norm of all gradients is Options::max_grad_norm, "
                            "anything else cannot be split",
                            kElsewhere);
      }
      std::vector<ProbeSample> flat;
      flat.reserve(samples.size());
      for (const ProbeSample& sample : samples) flat.push_back(sample.flat());
      const ProbeRun of_flat = run_alone(form, options, flat);
      if (!have_equal_values(of_flat, expected)) {
        return absl::StrCat(form.name,
                            ": got an update that depends on the shape of a parameter ([16, 12] "
                            "and the same values as [192] become different), expected one that is "
                            "elementwise, which can run on flat slices",
                            kWhole);
      }
      if (!have_equal_values(run_cut(form, options, samples), expected)) {
        return absl::StrCat(form.name,
                            ": got an update of an element that depends on others of its parameter "
                            "(a norm, a block), expected one that is elementwise, which can run on "
                            "slices",
                            kWhole);
      }
      const std::string found = problem_of_form_in_use(
          form, expected, [&] { return run_as_engine(form, options, states, samples); });
      if (!found.empty()) return absl::StrCat(form.name, ": ", found);
    }
  } catch (const FormProblem& problem) {
    return absl::StrCat(form.name, ": ", problem.text);
  } catch (...) {
    return absl::StrCat(form.name, ": ", thrown_in_probe());
  }
  return "";
}

}  // namespace tessera::internal
