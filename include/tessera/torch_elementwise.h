#pragma once

#include <tuple>

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "tessera/elementwise.h"

/// @file
/// ElementwiseTraits of LibTorch's own optimizers. elementwise<torch::optim::AdamW>(options) runs
/// LibTorch's own code, with its bits; AdamWOptions alone select Tessera's AdamW, which makes one
/// pass over memory. States have the same names in both, so either continues the other's run.

namespace tessera {

template <>
struct ElementwiseTraits<torch::optim::AdamW> {
  static ElementwiseForm<torch::optim::AdamWOptions, torch::optim::AdamWParamState> form();
};

template <>
struct ElementwiseTraits<torch::optim::Adam> {
  static ElementwiseForm<torch::optim::AdamOptions, torch::optim::AdamParamState> form();
};

template <>
struct ElementwiseTraits<torch::optim::SGD> {
  static ElementwiseForm<torch::optim::SGDOptions, torch::optim::SGDParamState> form();
};

template <>
struct ElementwiseTraits<torch::optim::Adagrad> {
  static ElementwiseForm<torch::optim::AdagradOptions, torch::optim::AdagradParamState> form();
};

template <>
struct ElementwiseTraits<torch::optim::RMSprop> {
  static ElementwiseForm<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState> form();
};

}  // namespace tessera
