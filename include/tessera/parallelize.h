#pragma once

#include <concepts>
#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "tessera/engine.h"
#include "tessera/optimizer_plan.h"
#include "tessera/options.h"
#include "tessera/process_group.h"

namespace tessera {

/// Makes `model` train on all ranks of `world` under options.strategy. Collective over `world`;
/// blocks until all ranks have called it.
///
/// All ranks must have built the same model (names, shapes, strides, dtypes, requires_grad, ties),
/// optimizer plan and options: a difference throws c10::Error on every rank, naming the first
/// difference. Parameters and buffers of rank 0 are given to all ranks; later, buffers follow
/// Options::buffers. Parameters move into flat buffers and, if Options::precision says so, get
/// another dtype. The tensors stay the user's own objects; their views and aliases follow or are
/// refused (Note [Aliases of parameters]); raw pointers taken before are stale. Where parameters
/// are split, each rank keeps its slice of them. Parameters that are expanded tensors become
/// contiguous. The engine keeps the model alive (a model given by reference must outlive the
/// engine). Only parameters that exist now are trained; Engine::step() and Engine::state_dict()
/// refuse later ones by name. Frozen parameters get rank 0's values and are not trained. If all
/// parameters are frozen, the model can only be evaluated, with its parameters split as the
/// strategy says, until Engine::set_trainable() makes some trainable. LibTorch's setFlushDenormal()
/// reaches the threads that add gradients only if it is called before init_process_group().
///
/// Throws c10::Error on every rank, naming what is wrong: options that do not fit the world or that
/// the strategy would ignore, an optimizer that has no kernels for a GPU (unless it is offloaded),
/// a user's own optimizer that is not elementwise (elementwise.h), parameters or buffers that do
/// not lie at world->device() (a CPU or a GPU), parameters that another engine owns or that have a
/// post-accumulate-gradient hook already, gradients that exist already (call zero_grad first),
/// parameters with a view or alias that could not follow.
std::unique_ptr<Engine> parallelize(std::shared_ptr<torch::nn::Module> model,
                                    OptimizerPlan optimizer, const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world);

/// The same for a model that the caller keeps alive longer than the engine.
std::unique_ptr<Engine> parallelize(torch::nn::Module& model, OptimizerPlan optimizer,
                                    const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world);

/// The same for a module holder (TORCH_MODULE).
template <typename Contained>
std::unique_ptr<Engine> parallelize(const torch::nn::ModuleHolder<Contained>& model,
                                    OptimizerPlan optimizer, const Options& options,
                                    const std::shared_ptr<ProcessGroup>& world) {
  return parallelize(std::shared_ptr<torch::nn::Module>(model.ptr()), std::move(optimizer), options,
                     world);
}

}  // namespace tessera
