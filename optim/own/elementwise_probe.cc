#include "tessera/optim/own/elementwise_probe.h"

#include <mutex>

#include <ATen/CPUGeneratorImpl.h>
#include <absl/strings/str_cat.h>

#include "tessera/optim/own/probe_run.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

at::Tensor present_state(at::Generator generator) {
  const std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

/// Returns why a state cannot be cut into slices; "" if it can.
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

/// Runs the optimizer on parameters of `dtype` and notes in `found` which states it keeps and which
/// dtypes they have, or what is wrong with them.
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
    // find_states() runs this function once for Float and once for Double parameters. If a state's
    // dtype follows the parameter's, it equals `dtype` both times, and the state's entry stays
    // nullopt.
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
  return find_states_by(form, "", [&](at::ScalarType dtype, StatesInUse& found) {
    look_at_states(form, options, dtype, found);
  });
}

std::string probe_elementwise(const ErasedForm& form, const OptimizerOptions& options,
                              const StatesInUse& states) {
  constexpr const char* kElsewhere =
      "; train its parameters with another algorithm, by a group of the plan";
  constexpr const char* kWhole =
      "; hand it to whole_tensor(), or train its parameters with another algorithm, by a group of "
      "the plan";
  const std::string draws =
      absl::StrCat("slices would draw others than whole parameters", kElsewhere);
  const std::string others = absl::StrCat(
      "is elementwise; a norm of all gradients is Options::max_grad_norm, anything else cannot be "
      "split",
      kElsewhere);
  return probe_by(
      form, options, states, &probe_samples, draws, others,
      [&](const std::vector<ProbeSample>& samples, const ProbeRun& expected) -> std::string {
        std::vector<ProbeSample> flat;
        flat.reserve(samples.size());
        for (const ProbeSample& sample : samples) flat.push_back(sample.flat());
        if (!have_equal_values(run_alone(form, options, flat), expected)) {
          return absl::StrCat(
              "got an update that depends on the shape of a parameter ([16, 12] and the same "
              "values as [192] become different), expected one that is elementwise, which can run "
              "on flat slices",
              kWhole);
        }
        if (!have_equal_values(run_cut(form, options, samples), expected)) {
          return absl::StrCat(
              "got an update of an element that depends on others of its parameter (a norm, a "
              "block), expected one that is elementwise, which can run on slices",
              kWhole);
        }
        return problem_of_form_in_use(
            form, expected, [&] { return run_as_engine(form, options, states, samples); });
      });
}

}  // namespace tessera::internal
