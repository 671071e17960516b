#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include "tessera/algorithm_options.h"

namespace tessera {

/// Where an optimizer's state of a parameter has the number of its updates so far: an accessor of
/// an integer or of a tensor of one value. Step counts are saved as `optimizer.<parameter>.step`.
template <typename State>
class StepCount {
 public:
  /// The state has none.
  StepCount() = default;
  /// access(State&) returns int64_t& or at::Tensor&; a pointer to a member does, too.
  template <typename Access>
  requires(std::is_lvalue_reference_v<std::invoke_result_t<const Access&, State&>>)
      StepCount(Access access) {
    read_ = [access](State& state) {
      auto& count = std::invoke(access, state);
      if constexpr (std::same_as<decltype(count), at::Tensor&>) {
        return count.defined() ? count.template item<double>() : 0.0;
      } else {
        return static_cast<double>(count);
      }
    };
    write_ = [access](State& state, int64_t steps) {
      auto& count = std::invoke(access, state);
      if constexpr (std::same_as<decltype(count), at::Tensor&>) {
        count = at::scalar_tensor(steps, at::kFloat);
      } else {
        count = static_cast<std::remove_reference_t<decltype(count)>>(steps);
      }
    };
  }

  explicit operator bool() const { return static_cast<bool>(read_); }
  double read(State& state) const { return read_(state); }
  void write(State& state, int64_t steps) const { write_(state, steps); }

 private:
  std::function<double(State&)> read_;
  std::function<void(State&, int64_t)> write_;
};

/// A state with a value for each element of its parameter: how a StateDict calls it, and where it
/// is. It may be undefined where the options do not use it.
template <typename State>
struct StateTensor {
  std::string name;                           ///< "exp_avg"
  std::function<at::Tensor&(State&)> tensor;  ///< or a pointer to a member
};

/// A number of an optimizer's options, besides the learning rate.
template <typename Options>
struct OptionNumber {
  /// access(Options&) returns a reference to a floating-point number, an integer or a bool; a
  /// pointer to a member does, too. Integers of 2^53 and more are refused: a StateDict holds
  /// numbers as fp64. `chooses_states`: it says which states there are (amsgrad), so
  /// that a StateDict does not hold it.
  template <typename Access>
  requires(
      std::is_arithmetic_v<std::remove_reference_t<std::invoke_result_t<const Access&, Options&>>>)
      OptionNumber(std::string name, Access access, bool chooses_states = false)
      : name(std::move(name)), chooses_states(chooses_states) {
    using Value = std::remove_reference_t<std::invoke_result_t<const Access&, Options&>>;
    is_switch = std::same_as<Value, bool>;
    is_whole = std::integral<Value>;
    if constexpr (std::integral<Value>) {
      using Limits = std::numeric_limits<Value>;
      begin = std::max(static_cast<double>(Limits::min()), 1 - kEnd);
      end = std::min(static_cast<double>(Limits::max()) + 1, kEnd);
    }
    read = [access](Options& of) { return static_cast<double>(std::invoke(access, of)); };
    write = [access](Options& of, double value) {
      std::invoke(access, of) = static_cast<Value>(value);
    };
  }

  std::string name;
  bool is_switch = false;
  bool is_whole = false;  ///< a bool or an integer
  bool chooses_states = false;
  /// What it may be, begin <= value < end; infinite: any finite number.
  double begin = -std::numeric_limits<double>::infinity();
  double end = std::numeric_limits<double>::infinity();
  std::function<double(Options&)> read;
  std::function<void(Options&, double)> write;

 private:
  static constexpr double kEnd = int64_t{1} << 53;  // of the integers that fp64 tells apart
};

/// What elementwise() must know of an optimizer: its options' and its states' C++ types, and what
/// is in them. LibTorch gives no other access to them.
template <OptimizerOptionsType OptionsType,
          std::derived_from<torch::optim::OptimizerParamState> StateType>
requires(std::default_initializable<StateType>) struct ElementwiseForm {
  using Options = OptionsType;
  using State = StateType;

  /// Of the algorithm, in letters, digits and `_`. A StateDict has it, so that another algorithm's
  /// is refused.
  std::string name;
  /// At most eight.
  std::vector<StateTensor<State>> states = {};
  StepCount<State> step = {};
  /// Compared between ranks, saved, loaded, and changed by whoever likes between two steps. Numbers
  /// that are not named stay what they were given as, and ranks must give the same.
  std::vector<OptionNumber<Options>> numbers = {};
};

/// To be specialised for an optimizer:
///
///     template <>
///     struct tessera::ElementwiseTraits<AdaBelief> {
///       static ElementwiseForm<AdaBeliefOptions, AdaBeliefState> form() {
///         return {.name = "AdaBelief",
///                 .states = {{"exp_avg", [](auto& of) -> auto& { return of.exp_avg(); }},
///                            {"exp_avg_var", [](auto& of) -> auto& { return of.exp_avg_var(); }}},
///                 .step = [](auto& of) -> auto& { return of.step(); },
///                 .numbers = {{"eps", [](auto& of) -> auto& { return of.eps(); }}}};
///       }
///     };
///
/// torch_elementwise.h has those of LibTorch's optimizers.
template <typename Optimizer>
struct ElementwiseTraits;

/// The options of an optimizer, as its ElementwiseTraits say.
template <typename Optimizer>
using ElementwiseOptions = typename decltype(ElementwiseTraits<Optimizer>::form())::Options;

/// An optimizer that ElementwiseTraits describe, and that is made from tensors and options.
template <typename Optimizer>
concept ElementwiseOptimizerType = std::derived_from<Optimizer, torch::optim::Optimizer> &&
    std::constructible_from<Optimizer, std::vector<at::Tensor>, ElementwiseOptions<Optimizer>>;

/// Whether elementwise() tries the optimizer out; kSkip where it takes too long or is wrong.
enum class ElementwiseProbe : uint8_t { kRun, kSkip };

namespace internal {

/// An ElementwiseForm without its types.
struct ErasedForm {
  using Options = torch::optim::OptimizerOptions;
  using State = torch::optim::OptimizerParamState;
  struct Number {
    std::string name;
    bool is_switch;
    bool is_whole;
    bool chooses_states;
    double begin;
    double end;
    std::function<double(const Options&)> read;
    std::function<void(Options&, double)> write;
  };
  struct Tensor {
    std::string name;
    std::function<at::Tensor&(State&)> of;
  };

  std::string name;
  std::string options_name;
  bool (*accepts)(const Options& options);
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<at::Tensor> parameters,
                                                   const Options& options);
  std::unique_ptr<State> (*make_state)();
  bool (*is_state)(const State& state);
  std::vector<Tensor> states;
  std::function<double(State&)> read_step;  // null: none
  std::function<void(State&, int64_t)> write_step;
  std::vector<Number> numbers;
};

std::shared_ptr<const Algorithm> make_elementwise(ErasedForm form,
                                                  const torch::optim::OptimizerOptions& options,
                                                  ElementwiseProbe probe);

template <typename Optimizer>
ErasedForm erased_form() {
  const auto form = ElementwiseTraits<Optimizer>::form();
  using Options = ElementwiseOptions<Optimizer>;
  using State = typename decltype(ElementwiseTraits<Optimizer>::form())::State;
  ErasedForm erased{
      .name = form.name,
      .options_name = c10::demangle(typeid(Options).name()),
      .accepts =
          [](const ErasedForm::Options& of) {
            return dynamic_cast<const Options*>(&of) != nullptr;
          },
      .make = [](std::vector<at::Tensor> parameters,
                 const ErasedForm::Options& options) -> std::unique_ptr<torch::optim::Optimizer> {
        return std::make_unique<Optimizer>(std::move(parameters),
                                           static_cast<const Options&>(options));
      },
      .make_state = []() -> std::unique_ptr<ErasedForm::State> {
        return std::make_unique<State>();
      },
      .is_state =
          [](const ErasedForm::State& of) { return dynamic_cast<const State*>(&of) != nullptr; },
      .states = {},
      .read_step = nullptr,
      .write_step = nullptr,
      .numbers = {}};
  for (const auto& state : form.states) {
    std::function<at::Tensor&(ErasedForm::State&)> of;  // null as the form's
    if (state.tensor) {
      of = [tensor = state.tensor](ErasedForm::State& any) -> at::Tensor& {
        return tensor(static_cast<State&>(any));
      };
    }
    erased.states.push_back({state.name, std::move(of)});
  }
  if (form.step) {
    erased.read_step = [step = form.step](ErasedForm::State& of) {
      return step.read(static_cast<State&>(of));
    };
    erased.write_step = [step = form.step](ErasedForm::State& of, int64_t steps) {
      step.write(static_cast<State&>(of), steps);
    };
  }
  for (const auto& number : form.numbers) {
    erased.numbers.push_back({number.name, number.is_switch, number.is_whole, number.chooses_states,
                              number.begin, number.end,
                              [read = number.read](const ErasedForm::Options& of) {
                                // Reading changes nothing; accessors give references to what may
                                // be written.
                                return read(const_cast<Options&>(static_cast<const Options&>(of)));
                              },
                              [write = number.write](ErasedForm::Options& of, double value) {
                                write(static_cast<Options&>(of), value);
                              }});
  }
  return erased;
}

}  // namespace internal

/// An optimizer of the user's own, for a plan or a group of one, by itself or beside others:
///
///     auto engine = parallelize(model, elementwise<AdaBelief>(AdaBeliefOptions(1e-3)), ...);
///
/// Each rank runs it over the slices that it updates: flat pieces of parameters that begin on
/// multiples of 64 elements, each with an Optimizer of its own that is made for one step from
/// options, states and count. So `Optimizer` must be elementwise: what becomes of an element may
/// depend on its value, gradient and states, the count and the options, on nothing else.
/// engine->optimizer() has its options, whose get_lr() and set_lr() must work; schedulers do. The
/// states are saved by name, move between strategies and worlds, and count in the memory formula.
///
/// Tried out at once on two small parameters for three steps, unless `probe` is kSkip: whole, in
/// pieces, beside each other and alone, with states that are handed on as above, which must give
/// the same bits. The default generator of the CPU is left as it was; no other thread may draw from
/// it meanwhile. That is a probe, not a proof: it does not see what shows later or on larger
/// tensors only. The states that there are may depend on bools and integers among `numbers`, and on
/// whether others are negative, zero or positive; the first step() at other such values runs the
/// optimizer on these parameters again, also under kSkip, and leaves the generator to other
/// threads. At new values of the same kind it is only made. Local, throws nothing; what it finds,
/// parallelize() throws on all ranks. An Optimizer that throws in a step fails the engine.
template <ElementwiseOptimizerType Optimizer>
AlgorithmOptions elementwise(ElementwiseOptions<Optimizer> options,
                             ElementwiseProbe probe = ElementwiseProbe::kRun) {
  auto algorithm = internal::make_elementwise(internal::erased_form<Optimizer>(), options, probe);
  return {std::move(options), std::move(algorithm)};
}

}  // namespace tessera
