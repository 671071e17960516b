#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

namespace tessera {

/// Options of checkpoint().
struct CheckpointOptions {
  /// If true (the default), the recomputation starts with the default generators of the CPU and of
  /// the inputs' GPU in the states that they had when the forward started, so that dropout drops
  /// the same elements. That costs a copy of the states: 5 KiB kept per checkpoint, and a few
  /// microseconds in forward and in backward. Set it to false only if `fn` draws no random numbers.
  bool preserve_random_state = true;
};

/// The implementation of checkpoint().
namespace internal {

/// TensorsIn<T>::visit(value, visit) calls `visit` on every tensor in `value`; `visit` may replace
/// the tensor. TensorsIn<T>::value is true for at::Tensor and std:: containers of it. Values of
/// other types hold no tensors.
template <typename T>
struct TensorsIn : std::false_type {
  template <typename Visit>
  static void visit(T&, const Visit&) {}
};

template <>
struct TensorsIn<at::Tensor> : std::true_type {
  template <typename Visit>
  static void visit(at::Tensor& value, const Visit& visit) {
    visit(value);
  }
};

template <typename T>
struct TensorsIn<std::optional<T>> : TensorsIn<T>::type {
  template <typename Visit>
  static void visit(std::optional<T>& value, const Visit& visit) {
    if (value.has_value()) TensorsIn<T>::visit(*value, visit);
  }
};

template <typename T>
struct TensorsIn<std::vector<T>> : TensorsIn<T>::type {
  template <typename Visit>
  static void visit(std::vector<T>& value, const Visit& visit) {
    if constexpr (TensorsIn<T>::value) {
      for (T& element : value) TensorsIn<T>::visit(element, visit);
    }
  }
};

template <typename T, size_t kSize>
struct TensorsIn<std::array<T, kSize>> : TensorsIn<T>::type {
  template <typename Visit>
  static void visit(std::array<T, kSize>& value, const Visit& visit) {
    for (T& element : value) TensorsIn<T>::visit(element, visit);
  }
};

template <typename First, typename Second>
struct TensorsIn<std::pair<First, Second>>
    : std::disjunction<TensorsIn<First>, TensorsIn<Second>>::type {
  template <typename Visit>
  static void visit(std::pair<First, Second>& value, const Visit& visit) {
    TensorsIn<First>::visit(value.first, visit);
    TensorsIn<Second>::visit(value.second, visit);
  }
};

template <typename... Elements>
struct TensorsIn<std::tuple<Elements...>> : std::disjunction<TensorsIn<Elements>...>::type {
  template <typename Visit>
  static void visit(std::tuple<Elements...>& value, const Visit& visit) {
    std::apply([&](Elements&... elements) { (TensorsIn<Elements>::visit(elements, visit), ...); },
               value);
  }
};

/// Moves all tensors of `value`, undefined ones too, into the returned vector, in order, and leaves
/// undefined tensors in their places.
template <typename T>
std::vector<at::Tensor> take_tensors(T& value) {
  std::vector<at::Tensor> tensors;
  TensorsIn<T>::visit(value, [&tensors](at::Tensor& tensor) {
    tensors.push_back(std::move(tensor));
    tensor = at::Tensor();
  });
  return tensors;
}

/// Puts `tensors`, in order, into the places that take_tensors() emptied.
template <typename T>
void put_tensors(T& value, const std::vector<at::Tensor>& tensors) {
  size_t next = 0;
  TensorsIn<T>::visit(value, [&](at::Tensor& tensor) { tensor = tensors.at(next++); });
}

/// Calls fn->forward(inputs...) if that exists, else std::invoke(fn, inputs...). Does not use a
/// module holder's operator(), because it cannot deduce what a Sequential returns.
template <typename Fn, typename... Inputs>
decltype(auto) call_module_or_function(Fn& fn, Inputs&... inputs) {
  if constexpr (requires { fn->forward(inputs...); }) {
    return fn->forward(inputs...);
  } else {
    return std::invoke(fn, inputs...);
  }
}

/// A function and its inputs. take_inputs() moves the tensors among the inputs out to the caller,
/// who keeps them and passes them to run().
template <typename Fn, typename... Inputs>
class CheckpointedCall {
 public:
  using Result = std::decay_t<decltype(call_module_or_function(std::declval<Fn&>(),
                                                               std::declval<Inputs&>()...))>;

  template <typename F, typename... I>
  explicit CheckpointedCall(F&& fn, I&&... inputs)
      : fn_(std::forward<F>(fn)), inputs_(std::forward<I>(inputs)...) {}

  std::vector<at::Tensor> take_inputs() { return take_tensors(inputs_); }

  Result run(const std::vector<at::Tensor>& tensors) {
    std::tuple<Inputs...> inputs = inputs_;
    put_tensors(inputs, tensors);
    return std::apply([this](Inputs&... input) { return call_module_or_function(fn_, input...); },
                      inputs);
  }

 private:
  Fn fn_;
  std::tuple<Inputs...> inputs_;
};

/// Computes output tensors from input tensors.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Runs `first` on `inputs` without a graph and returns the outputs, which have one autograd node.
/// In backward this node runs `again`. Grad mode must be on.
std::vector<at::Tensor> run_checkpointed(const CheckpointOptions& options,
                                         std::vector<at::Tensor> inputs,
                                         const TensorFunction& first, TensorFunction again);

}  // namespace internal

/// Activation checkpointing: runs `fn(inputs...)` without a graph and keeps only its inputs. When
/// backward reaches the outputs of this call, `fn` runs again with a graph, and then backward runs
/// through that graph (re-entrant, as torch.utils.checkpoint with use_reentrant=True). So the
/// activations of `fn` live only during the backward of `fn`, at the cost of one more forward.
/// Local, blocking; works under every strategy and without an engine. Returns what `fn` returns:
///
///     x = tessera::checkpoint(block, x);                            // a module holder
///     x = tessera::checkpoint([this](const at::Tensor& x) { return attend(norm(x)); }, x);
///     auto [h, c] = tessera::checkpoint(&Net::cell, this, h, c, 3);  // any number and kind
///
/// `fn` (copied or moved) is a module holder, a pointer to a module or anything that std::invoke
/// takes; what it refers to must live until backward. `fn` may use parameters that are not among
/// its inputs. Its second run must do the same as its first (take the same branches), and it must
/// not write to its inputs. Both runs update buffers such as BatchNorm's running statistics.
///
/// Inputs: tensors (defined or not, any dtype, requiring grad or not), std::vector, tuple, pair,
/// array and optional of them, and any other copyable value. `fn` gets copies of them, as lvalues.
/// A tensor that has a graph must be passed as an input: if `fn` captures one, backward throws.
///
/// Outputs: a tensor, or std::vector, tuple, pair, array or optional of tensors. Outputs of
/// floating or complex dtype always require grad, even if nothing in `fn` does: the forward builds
/// no graph, so it cannot tell. No input needs to require grad for the parameters in `fn` to get
/// their gradients.
///
/// On whatever thread it runs, the recomputation uses the generator states (see CheckpointOptions)
/// and the autocast state of the forward. The previous states are restored before gradients are
/// computed, and after an exception. Autocast's cache of cast parameters is not used in the forward
/// (a parameter used n times in `fn` is cast n times there) and is cleared before and after the
/// recomputation, so at most the casts of one `fn` are alive.
///
/// If grad mode is off, it just calls `fn`. Checkpoints nest to any depth. A second backward needs
/// retain_graph=true in the first and recomputes again.
///
/// The forward throws c10::Error if `fn` writes to an input, and, if the random state is to be
/// preserved, for inputs on two GPUs or on a device that is neither CPU nor GPU. The backward
/// throws c10::Error if an input was modified after the forward (autograd's own check), if the
/// second run of `fn` returns other shapes or dtypes than the first, if `fn` captured a tensor that
/// has a graph, for create_graph=true, and for autograd::grad() and backward(inputs=...), because
/// these cannot reach parameters inside `fn`. An exception that `fn` throws reaches the caller of
/// forward or backward unchanged.
///
/// Source: Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016.
template <typename Fn, typename... Inputs>
auto checkpoint(const CheckpointOptions& options, Fn&& fn, Inputs&&... inputs) {
  using Call = internal::CheckpointedCall<std::decay_t<Fn>, std::decay_t<Inputs>...>;
  using Result = typename Call::Result;
  static_assert(internal::TensorsIn<Result>::value,
                "checkpoint: fn must return at::Tensor, or std::vector, tuple, pair, array or "
                "optional of it");
  static_assert(!(std::is_same_v<std::decay_t<Inputs>, at::TensorList> || ...),
                "checkpoint: an at::TensorList does not own its tensors; pass a std::vector");
  auto call = std::make_shared<Call>(std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
  std::vector<at::Tensor> tensors = call->take_inputs();
  if (!c10::GradMode::is_enabled()) return call->run(tensors);

  std::optional<Result> result;
  const std::vector<at::Tensor> outputs = internal::run_checkpointed(
      options, std::move(tensors),
      [&](const std::vector<at::Tensor>& in) {
        result.emplace(call->run(in));
        return internal::take_tensors(*result);
      },
      [call](const std::vector<at::Tensor>& in) {
        Result again = call->run(in);
        return internal::take_tensors(again);
      });
  internal::put_tensors(*result, outputs);
  return *std::move(result);
}

/// The same with the default options.
template <typename Fn, typename... Inputs>
requires(!std::same_as<std::remove_cvref_t<Fn>, CheckpointOptions>) auto checkpoint(
    Fn&& fn, Inputs&&... inputs) {
  return checkpoint(CheckpointOptions{}, std::forward<Fn>(fn), std::forward<Inputs>(inputs)...);
}

}  // namespace tessera
