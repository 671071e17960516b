#pragma once

#include <concepts>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "tessera/algorithm_options.h"
#include "tessera/optimizer_form.h"

namespace tessera {

/// Describes an optimizer to elementwise().
template <OptimizerOptionsType OptionsType,
          std::derived_from<torch::optim::OptimizerParamState> StateType>
using ElementwiseForm = OptimizerForm<OptionsType, StateType>;

/// To use an optimizer with elementwise(), specialise this template for it:
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
/// torch_elementwise.h has the traits of LibTorch's optimizers.
template <typename Optimizer>
struct ElementwiseTraits;

/// The options type of `Optimizer`, as its ElementwiseTraits say.
template <typename Optimizer>
using ElementwiseOptions = typename decltype(ElementwiseTraits<Optimizer>::form())::Options;

/// An optimizer that ElementwiseTraits describe, and that is made from tensors and options.
template <typename Optimizer>
concept ElementwiseOptimizerType = std::derived_from<Optimizer, torch::optim::Optimizer> &&
    std::constructible_from<Optimizer, std::vector<at::Tensor>, ElementwiseOptions<Optimizer>>;

/// Whether elementwise() tries the optimizer out (ElementwiseProbe::kRun) or not (kSkip).
using ElementwiseProbe = OptimizerProbe;

namespace internal {

std::shared_ptr<const Algorithm> make_elementwise(ErasedForm form,
                                                  const torch::optim::OptimizerOptions& options,
                                                  OptimizerProbe probe);

}  // namespace internal

/// Makes options that run an optimizer of the user's own, for an OptimizerPlan or one of its
/// groups:
///
///     auto engine = parallelize(model, elementwise<AdaBelief>(AdaBeliefOptions(1e-3)), ...);
///
/// Each rank runs the optimizer over the slices that the rank updates: flat pieces of parameters.
/// Each piece begins at a multiple of 64 elements of its parameter. For each piece and step the
/// rank makes an Optimizer from the options, the states and the step count. So `Optimizer` must be
/// elementwise: an element's update may depend only on the element's value, gradient and states,
/// the count and the options. engine->optimizer() has these options, whose get_lr() and set_lr()
/// must work, so schedulers can be used. The states are saved by name, can be loaded under another
/// strategy and world size, and count in the memory formula.
///
/// Unless `probe` is kSkip, this call tries the optimizer out on two small parameters for three
/// steps: on whole parameters and on pieces of them, on both parameters together and on each alone,
/// with states passed from step to step as above. All these ways must give the same bits. The CPU's
/// default generator is left as it was; no other thread may draw from it during the call. The probe
/// is no proof, because it misses errors that show only in later steps or on larger tensors. The
/// set of states may depend on bools and integers among `numbers`, and on the signs of other
/// numbers (negative, zero, positive). If one of these bools, integers or signs changes, the next
/// step() runs the optimizer on the small parameters again, even under kSkip, and does not restore
/// the generator, which other threads may use. If numbers change in any other way, the next step()
/// only runs the optimizer's constructor, because it may refuse them. Local, throws nothing:
/// parallelize() throws the problems found, on all ranks. An Optimizer that throws in a step fails
/// the engine.
template <ElementwiseOptimizerType Optimizer>
AlgorithmOptions elementwise(ElementwiseOptions<Optimizer> options,
                             ElementwiseProbe probe = ElementwiseProbe::kRun) {
  auto algorithm = internal::make_elementwise(
      internal::erased_form<Optimizer>(ElementwiseTraits<Optimizer>::form(), "ElementwiseTraits"),
      options, probe);
  return {std::move(options), std::move(algorithm)};
}

}  // namespace tessera
