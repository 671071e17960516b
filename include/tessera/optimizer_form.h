#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
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

/// Reads and writes the step count in an optimizer's state of one parameter. The count is an
/// integer or a tensor of one value. Step counts are saved as `optimizer.<parameter>.step`.
template <typename State>
class StepCount {
 public:
  /// For optimizers whose state has no step count.
  StepCount() = default;
  /// access(State&) returns int64_t& or at::Tensor&; a pointer to a member will do, too.
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

/// The sizes of a parameter's state; std::nullopt if the parameter does not have this state.
using StateSizes = std::optional<std::vector<int64_t>>;

/// A tensor that an optimizer keeps for each parameter: its name in a StateDict, and an accessor.
/// The tensor may be undefined if the options do not use it.
template <typename State, typename Options>
struct StateTensor {
  using Access = std::function<at::Tensor&(State& state)>;
  using Sizes = std::function<StateSizes(const Options& options, at::IntArrayRef parameter)>;

  StateTensor(std::string name, Access tensor, Sizes sizes = nullptr)
      : name(std::move(name)), tensor(std::move(tensor)), sizes(std::move(sizes)) {}

  std::string name;  ///< its name in a StateDict: "exp_avg"
  Access tensor;     ///< an accessor, or a pointer to a member
  /// For whole_tensor() only: a function that takes the options and the parameter's sizes, and
  /// returns the state's sizes. It must return the same for equal arguments. Null: the state has
  /// the parameter's own sizes.
  Sizes sizes;
};

/// A number in an optimizer's options, other than the learning rate.
template <typename Options>
struct OptionNumber {
  /// access(Options&) returns a reference to a floating-point number, an integer or a bool; a
  /// pointer to a member will do, too. Integers of 2^53 and more are refused, because a StateDict
  /// holds numbers as fp64. `chooses_states`: true if the number decides which states there are, as
  /// amsgrad does; a StateDict does not hold such a number.
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
  /// The number must be finite, and begin <= number < end.
  double begin = -std::numeric_limits<double>::infinity();
  double end = std::numeric_limits<double>::infinity();
  std::function<double(Options&)> read;
  std::function<void(Options&, double)> write;

 private:
  static constexpr double kEnd = int64_t{1} << 53;  // fp64 holds all integers below it exactly
};

/// Describes an optimizer to elementwise() and whole_tensor(): the C++ types of its options and
/// states, and their fields. LibTorch gives no other access to them.
template <OptimizerOptionsType OptionsType,
          std::derived_from<torch::optim::OptimizerParamState> StateType>
requires(std::default_initializable<StateType>) struct OptimizerForm {
  using Options = OptionsType;
  using State = StateType;

  /// The algorithm's name, in letters, digits and `_`. A StateDict holds it, so that a state of
  /// another algorithm is refused.
  std::string name;
  /// The state's tensors; under elementwise() at most eight.
  std::vector<StateTensor<State, Options>> states = {};
  StepCount<State> step = {};
  /// Numbers that are compared between ranks, saved and loaded, and may be changed between two
  /// steps. Other numbers keep their first values, which must be equal on all ranks.
  std::vector<OptionNumber<Options>> numbers = {};
  /// For whole_tensor() only: how many dimensions its parameters must have; 0: any number.
  int64_t dimensions = 0;
};

/// Whether elementwise() and whole_tensor() try the optimizer out (kRun) or not (kSkip). Use kSkip
/// if the trial takes too long or reports an error by mistake.
enum class OptimizerProbe : uint8_t { kRun, kSkip };

namespace internal {

/// An OptimizerForm as a type that does not depend on the optimizer's types.
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
    // Returns the state's sizes; null: the state has the parameter's own sizes.
    std::function<StateSizes(const Options&, at::IntArrayRef)> sizes;
  };

  const char* traits;  // name of the traits template, for messages
  std::string name;
  std::string options_name;
  bool (*accepts)(const Options& options);
  std::unique_ptr<torch::optim::Optimizer> (*make)(std::vector<at::Tensor> parameters,
                                                   const Options& options);
  std::unique_ptr<State> (*make_state)();
  bool (*is_state)(const State& state);
  std::vector<Tensor> states;
  std::function<double(State&)> read_step;  // null: no step count
  std::function<void(State&, int64_t)> write_step;
  std::vector<Number> numbers;
  int64_t dimensions;
};

/// Returns `form`, which describes `Optimizer`, without its C++ types. `traits`: the name of the
/// traits template that `form` comes from, for messages.
template <typename Optimizer, typename Form>
ErasedForm erased_form(const Form& form, const char* traits) {
  using Options = typename Form::Options;
  using State = typename Form::State;
  ErasedForm erased{
      .traits = traits,
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
      .numbers = {},
      .dimensions = form.dimensions};
  for (const auto& state : form.states) {
    std::function<at::Tensor&(ErasedForm::State&)> of;  // null if `state` has no accessor
    if (state.tensor) {
      of = [tensor = state.tensor](ErasedForm::State& any) -> at::Tensor& {
        return tensor(static_cast<State&>(any));
      };
    }
    std::function<StateSizes(const ErasedForm::Options&, at::IntArrayRef)> sizes;
    if (state.sizes) {
      sizes = [own = state.sizes](const ErasedForm::Options& options, at::IntArrayRef parameter) {
        return own(static_cast<const Options&>(options), parameter);
      };
    }
    erased.states.push_back({state.name, std::move(of), std::move(sizes)});
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
                                // Reading changes nothing. The accessor takes a mutable object only
                                // because it also serves write().
                                return read(const_cast<Options&>(static_cast<const Options&>(of)));
                              },
                              [write = number.write](ErasedForm::Options& of, double value) {
                                write(static_cast<Options&>(of), value);
                              }});
  }
  return erased;
}

}  // namespace internal

}  // namespace tessera
