#include "tessera/optim/own/probe_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Type.h>

#include "tessera/core/layout/read_only_memory.h"
#include "tessera/core/process/error_text.h"
#include "tessera/flat_layout.h"
#include "tessera/optim/own/optimizer_update.h"

namespace tessera::internal {

namespace {

using torch::optim::OptimizerOptions;

/// Returns numbers of both signs, and zeros, with magnitudes spread over `decades` decades. Uses no
/// random generator.
at::Tensor spread(at::IntArrayRef sizes, at::ScalarType dtype, double phase, int decades) {
  at::Tensor numbers = at::empty(sizes, at::kDouble);
  double* const element = numbers.mutable_data_ptr<double>();
  for (int64_t i = 0; i < numbers.numel(); ++i) {
    const int64_t power = i * 7 % decades - decades / 2;
    const double size = std::pow(10.0, static_cast<double>(power));
    element[i] = i % 11 == 5 ? 0.0 : std::sin(phase + 1.7 * static_cast<double>(i)) * size;
  }
  return numbers.to(dtype);
}

/// Returns the pieces into which `sample` is cut: there is a cut wherever slices may end.
std::vector<Range> cuts_of(const ProbeSample& sample) {
  std::vector<Range> cuts;
  const int64_t numel = sample.values.numel();
  const int64_t most = FlatLayout::alignment_numel(sample.values.scalar_type());
  for (int64_t begin = 0; begin < numel; begin += most) {
    cuts.push_back({begin, std::min(most, numel - begin)});
  }
  return cuts;
}

std::unique_ptr<OptimizerOptions> with_rate(const OptimizerOptions& options, double rate) {
  std::unique_ptr<OptimizerOptions> copy = options.clone();
  copy->set_lr(rate);
  return copy;
}

ErasedForm::State& own_state(const ErasedForm& form, ErasedForm::State& state) {
  if (form.is_state(state)) return state;
  throw FormProblem{absl::StrCat("got a state of type ", c10::demangle(typeid(state).name()),
                                 ", expected the one that ", form.traits, " say; correct them")};
}

/// Returns the values that the learning rate and the form's numbers have in `options`.
std::vector<double> numbers_of(const ErasedForm& form, const OptimizerOptions& options) {
  std::vector<double> numbers = {options.get_lr()};
  for (const auto& number : form.numbers) numbers.push_back(number.read(options));
  return numbers;
}

/// Throws FormProblem if a step has changed the optimizer's numbers: `before` and `after` are the
/// numbers before and after the step. An engine would lose the change, because it runs each step
/// with the numbers in its own options.
void require_unchanged(const ErasedForm& form, const std::vector<double>& before,
                       const std::vector<double>& after) {
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i] || std::isnan(before[i])) continue;
    throw FormProblem{absl::StrCat(i == 0 ? "lr" : form.numbers[i - 1].name, ": got ", after[i],
                                   " after a step with ", before[i],
                                   ", expected no change; compute numbers that change from the "
                                   "count, or change them between steps")};
  }
}

template <typename T>
ProbeRun run_pieces(const ErasedForm& form, const OptimizerOptions& options,
                    const StatesInUse& in_use, const std::vector<ProbeSample>& samples) {
  const std::shared_ptr<const ErasedForm> not_owned(std::shared_ptr<void>(), &form);
  OptimizerUpdate update(not_owned, in_use.dtypes, 1);
  ProbeRun all;
  for (const ProbeSample& sample : samples) {
    const at::Tensor values = sample.values.flatten().clone();
    std::vector<at::Tensor> states(form.states.size());
    for (size_t i = 0; i < states.size(); ++i) {
      if (in_use.used[i] == 0) continue;
      states[i] = at::zeros({values.numel()}, in_use.dtypes[i].value_or(values.scalar_type()));
    }
    std::vector<at::Tensor>& by_step = all.values.emplace_back();
    for (size_t step = 0; step < kProbeRates.size(); ++step) {
      const auto now = with_rate(options, kProbeRates[step]);
      const at::Tensor gradient = sample.gradients[step].flatten();
      update.prepare(0, *now, static_cast<int64_t>(step + 1), 1.0);
      for (const Range& cut : cuts_of(sample)) {
        std::vector<void*> memory;
        memory.reserve(states.size());
        for (const at::Tensor& state : states) {
          memory.push_back(
              state.defined() ? state.narrow(0, cut.begin, cut.numel).mutable_data_ptr() : nullptr);
        }
        update.apply(0, values.mutable_data_ptr<T>() + cut.begin,
                     gradient.const_data_ptr<T>() + cut.begin, memory, cut.numel);
      }
      by_step.push_back(values.clone());
    }
    all.states.push_back(std::move(states));
  }
  return all;
}

bool have_equal_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.numel() == b.numel() &&
         have_same_bits(a.flatten(), b.flatten());
}

bool changes_something(const ProbeRun& run, const std::vector<ProbeSample>& samples) {
  for (size_t i = 0; i < samples.size(); ++i) {
    if (!have_equal_bits(run.values[i].back(), samples[i].values)) return true;
  }
  return false;
}

/// Returns the text of the exception in flight, as a problem that a probe has found.
std::string thrown_in_probe() {
  return absl::StrCat("got an exception in a run of three steps, expected none: ",
                      present_error_text());
}

constexpr const char* kNameAll =
    "; name tensors in `states` and the count as `step`, and keep nothing in the optimizer or its "
    "options";

}  // namespace

ProbeSample probe_sample(at::IntArrayRef sizes, at::ScalarType dtype) {
  const auto phase = static_cast<double>(sizes.size());
  ProbeSample sample{spread(sizes, dtype, phase, 2), {}};
  for (size_t step = 0; step < kProbeRates.size(); ++step) {
    sample.gradients.push_back(
        spread(sizes, dtype, 10.0 * phase + static_cast<double>(step + 1), 5));
  }
  return sample;
}

ProbeSample ProbeSample::cut(int64_t begin, int64_t numel) const {
  ProbeSample piece{values.flatten().narrow(0, begin, numel).clone(), {}};
  for (const at::Tensor& gradient : gradients) {
    piece.gradients.push_back(gradient.flatten().narrow(0, begin, numel).clone());
  }
  return piece;
}

std::vector<ProbeSample> probe_samples(at::ScalarType dtype) {
  return {probe_sample({16, 12}, dtype), probe_sample({130}, dtype)};
}

bool have_equal_values(const ProbeRun& a, const ProbeRun& b) {
  for (size_t i = 0; i < a.values.size(); ++i) {
    for (size_t step = 0; step < kProbeRates.size(); ++step) {
      if (!have_equal_bits(a.values[i][step], b.values[i][step])) return false;
    }
  }
  return true;
}

bool have_equal_states(const ProbeRun& a, const ProbeRun& b) {
  for (size_t i = 0; i < a.states.size(); ++i) {
    for (size_t state = 0; state < a.states[i].size(); ++state) {
      const at::Tensor& left = a.states[i][state];
      const at::Tensor& right = b.states[i][state];
      if (left.defined() && right.defined() && !have_equal_bits(left, right)) return false;
    }
  }
  return true;
}

std::string problem_of_form_in_use(const ErasedForm& form, const ProbeRun& expected,
                                   const std::function<ProbeRun()>& run_as_engine) {
  try {
    const ProbeRun run = run_as_engine();
    if (have_equal_values(run, expected) && have_equal_states(run, expected)) return "";
  } catch (...) {
    return absl::StrCat("got an exception in a step whose state is put together from what its ",
                        form.traits, " name, expected none: ", present_error_text(), kNameAll);
  }
  return absl::StrCat(
      "got an update that depends on something that its ", form.traits,
      " do not name, or a state that is not made in the first step, expected named states and a "
      "count only",
      kNameAll);
}

ProbeRun run_whole(const ErasedForm& form, const OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples) {
  std::vector<at::Tensor> parameters;
  parameters.reserve(samples.size());
  for (const ProbeSample& sample : samples) {
    parameters.push_back(sample.values.clone().requires_grad_());
  }
  const auto optimizer = form.make(parameters, *with_rate(options, kProbeRates[0]));
  ProbeRun run{.values = std::vector<std::vector<at::Tensor>>(samples.size()), .states = {}};
  for (size_t step = 0; step < kProbeRates.size(); ++step) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(kProbeRates[step]);
    for (size_t i = 0; i < samples.size(); ++i) {
      parameters[i].mutable_grad() = samples[i].gradients[step].clone();
    }
    const OptimizerOptions& present = optimizer->param_groups()[0].options();
    const std::vector<double> numbers = numbers_of(form, present);
    optimizer->step();
    require_unchanged(form, numbers, numbers_of(form, present));
    for (size_t i = 0; i < samples.size(); ++i) {
      run.values[i].push_back(parameters[i].detach().flatten().clone());
      const auto found = optimizer->state().find(parameters[i].unsafeGetTensorImpl());
      if (!form.read_step || found == optimizer->state().end()) continue;
      const double count = form.read_step(own_state(form, *found->second));
      if (count == static_cast<double>(step + 1)) continue;
      throw FormProblem{absl::StrCat("step: got ", count, " after ", step + 1,
                                     " updates of a parameter, expected ", step + 1,
                                     "; count each update once, from 1")};
    }
  }
  for (const at::Tensor& parameter : parameters) {
    std::vector<at::Tensor>& states = run.states.emplace_back(form.states.size());
    const auto found = optimizer->state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer->state().end()) continue;
    for (size_t i = 0; i < states.size(); ++i) {
      states[i] = form.states[i].of(own_state(form, *found->second));
    }
  }
  return run;
}

ProbeRun run_alone(const ErasedForm& form, const OptimizerOptions& options,
                   const std::vector<ProbeSample>& samples) {
  ProbeRun all;
  for (const ProbeSample& sample : samples) {
    ProbeRun run = run_whole(form, options, {sample});
    all.values.push_back(std::move(run.values[0]));
    all.states.push_back(std::move(run.states[0]));
  }
  return all;
}

ProbeRun run_cut(const ErasedForm& form, const OptimizerOptions& options,
                 const std::vector<ProbeSample>& samples) {
  ProbeRun all;
  for (const ProbeSample& sample : samples) {
    std::vector<ProbeSample> pieces;
    for (const Range& cut : cuts_of(sample)) pieces.push_back(sample.cut(cut.begin, cut.numel));
    const ProbeRun run = run_alone(form, options, pieces);
    std::vector<at::Tensor>& values = all.values.emplace_back();
    for (size_t step = 0; step < kProbeRates.size(); ++step) {
      std::vector<at::Tensor> parts;
      for (const auto& of_piece : run.values) parts.push_back(of_piece[step]);
      values.push_back(at::cat(parts));
    }
  }
  return all;
}

ProbeRun run_as_engine(const ErasedForm& form, const OptimizerOptions& options,
                       const StatesInUse& in_use, const std::vector<ProbeSample>& samples) {
  return samples.front().values.scalar_type() == at::kFloat
             ? run_pieces<float>(form, options, in_use, samples)
             : run_pieces<double>(form, options, in_use, samples);
}

StatesInUse find_states_by(const ErasedForm& form, const char* remedy,
                           const std::function<void(at::ScalarType, StatesInUse&)>& look) {
  const size_t count = form.states.size();
  StatesInUse found{.problem = "",
                    .used = std::vector<uint8_t>(count, 0),
                    .dtypes = std::vector<std::optional<at::ScalarType>>(count)};
  const at::NoGradGuard no_grad;
  try {
    look(at::kFloat, found);
  } catch (const FormProblem& problem) {
    found.problem = problem.text;
  } catch (...) {
    found.problem = absl::StrCat(thrown_in_probe(), remedy);
  }
  if (!found.problem.empty()) return found;
  try {
    look(at::kDouble, found);
  } catch (...) {
    found.takes_double = false;
  }
  return found;
}

std::string probe_by(const ErasedForm& form, const OptimizerOptions& options,
                     const StatesInUse& states,
                     const std::function<std::vector<ProbeSample>(at::ScalarType)>& samples_of,
                     const std::string& draws, const std::string& others,
                     const std::function<std::string(const std::vector<ProbeSample>&,
                                                     const ProbeRun&)>& problem_of) {
  const auto problem_with = [&](const std::vector<ProbeSample>& samples,
                                const GeneratorKeeper& keeper) {
    const ProbeRun expected = run_whole(form, options, samples);
    if (keeper.is_drawn_from_by([&] { run_whole(form, options, samples); })) {
      return absl::StrCat("got a step that draws random numbers, expected none: ", draws);
    }
    if (!changes_something(expected, samples)) {
      return std::string(
          "got no change of any value in three steps, expected an update; see whether step() reads "
          "the gradients of param_groups()");
    }
    if (!have_equal_values(run_alone(form, options, samples), expected)) {
      return absl::StrCat("got an update that depends on other parameters, expected one that ",
                          others);
    }
    return problem_of(samples, expected);
  };
  const at::NoGradGuard no_grad;
  const GeneratorKeeper keeper;
  std::string problem;
  try {
    problem = problem_with(samples_of(at::kFloat), keeper);
    if (problem.empty() && states.takes_double) {
      problem = problem_with(samples_of(at::kDouble), keeper);
    }
  } catch (const FormProblem& found) {
    problem = found.text;
  } catch (...) {
    problem = thrown_in_probe();
  }
  return problem.empty() ? "" : absl::StrCat(form.name, ": ", problem);
}

}  // namespace tessera::internal
