#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/algorithm_options.h"
#include "tessera/elementwise.h"
#include "tessera/optimizer_form.h"

namespace tessera {

/// Describes an optimizer to whole_tensor().
template <OptimizerOptionsType OptionsType,
          std::derived_from<torch::optim::OptimizerParamState> StateType>
using WholeTensorForm = OptimizerForm<OptionsType, StateType>;

/// To be specialised for an optimizer:
///
///     template <>
///     struct tessera::WholeTensorTraits<Adafactor> {
///       static StateSizes rows(const AdafactorOptions&, at::IntArrayRef of) {
///         if (of.size() != 2) return std::nullopt;  // vectors have no such state
///         return std::vector<int64_t>{of[0]};
///       }
///       ...
///       static WholeTensorForm<AdafactorOptions, AdafactorState> form() {
///         return {.name = "Adafactor",
///                 .states = {{"exp_avg_sq_row", &AdafactorState::row, &rows},
///                            {"exp_avg_sq_col", &AdafactorState::col, &cols},
///                            {"exp_avg_sq", &AdafactorState::whole, &whole}},
///                 .step = &AdafactorState::updates};
///       }
///     };
///
/// An optimizer with ElementwiseTraits needs no WholeTensorTraits, unless it has states of other
/// sizes.
template <typename Optimizer>
struct WholeTensorTraits;

template <typename Optimizer>
requires(requires { ElementwiseTraits<Optimizer>::form(); }) struct WholeTensorTraits<Optimizer>
    : ElementwiseTraits<Optimizer> {
};

/// The options type of `Optimizer`, as its WholeTensorTraits say.
template <typename Optimizer>
using WholeTensorOptions = typename decltype(WholeTensorTraits<Optimizer>::form())::Options;

/// An optimizer that WholeTensorTraits describe, and that is made from tensors and options.
template <typename Optimizer>
concept WholeTensorOptimizerType = std::derived_from<Optimizer, torch::optim::Optimizer> &&
    std::constructible_from<Optimizer, std::vector<at::Tensor>, WholeTensorOptions<Optimizer>>;

namespace internal {

std::shared_ptr<const Algorithm> make_whole_tensor(ErasedForm form,
                                                   const torch::optim::OptimizerOptions& options,
                                                   OptimizerProbe probe);

}  // namespace internal

/// Makes options that run an optimizer of the user's own on whole parameters, for an OptimizerPlan
/// or one of its groups:
///
///     const auto is_matrix = [](std::string_view, const at::Tensor& of) { return of.dim() == 2; };
///     auto engine = parallelize(
///         model, {AdamWOptions(3e-4),
///                 {{"matrices", is_matrix, whole_tensor<Shampoo>(ShampooOptions(0.1))}}}, ...);
///
/// If the optimizer's state is split, each parameter has an owner among the ranks over which the
/// state is split. Parameters are assigned from the largest to the smallest, each to the rank with
/// the fewest elements so far. In a step the owner reads the others' pieces of gradient and values
/// and runs an Optimizer over the whole parameter in the parameter's own shape; the others then
/// read their pieces of the new values. Only the owner has the parameter's states, which may have
/// any sizes. If nothing is split, each rank updates all parameters in this way.
///
/// For each step of each parameter a new Optimizer is made, from the options, the parameter's
/// states and its number of updates. So an update may depend on the whole parameter, its gradient
/// and states, the number of updates and the options, but not on other parameters or on anything
/// kept without a name. This call tries the optimizer out as elementwise() does (OptimizerProbe),
/// on parameters of sizes [16, 12], [12, 20] and [130], or, if the form sets `dimensions`, on two
/// parameters of that many dimensions. It updates them twice: once all by one Optimizer, and once
/// each by an Optimizer of its own. States are saved by name under any strategy and world; the
/// owner saves them. engine->optimizer() has the options, whose get_lr() and set_lr() must work.
/// Local, throws nothing: parallelize() throws the problems found, on all ranks. An Optimizer that
/// throws in a step fails the engine.
template <WholeTensorOptimizerType Optimizer>
AlgorithmOptions whole_tensor(WholeTensorOptions<Optimizer> options,
                              OptimizerProbe probe = OptimizerProbe::kRun) {
  auto algorithm = internal::make_whole_tensor(
      internal::erased_form<Optimizer>(WholeTensorTraits<Optimizer>::form(), "WholeTensorTraits"),
      options, probe);
  return {std::move(options), std::move(algorithm)};
}

}  // namespace tessera
