#include "tessera/torch_elementwise.h"

#include <tuple>

namespace tessera {

namespace {

/// Returns the parts of a form that Adam and AdamW have in common.
template <typename Options, typename State>
ElementwiseForm<Options, State> adam_form(const char* name) {
  return {
      .name = name,
      .states = {{"exp_avg", [](State& of) -> at::Tensor& { return of.exp_avg(); }},
                 {"exp_avg_sq", [](State& of) -> at::Tensor& { return of.exp_avg_sq(); }},
                 {"max_exp_avg_sq", [](State& of) -> at::Tensor& { return of.max_exp_avg_sq(); }}},
      .step = [](State& of) -> int64_t& { return of.step(); },
      .numbers = {{"beta1", [](Options& of) -> double& { return std::get<0>(of.betas()); }},
                  {"beta2", [](Options& of) -> double& { return std::get<1>(of.betas()); }},
                  {"eps", [](Options& of) -> double& { return of.eps(); }},
                  {"weight_decay", [](Options& of) -> double& { return of.weight_decay(); }},
                  {"amsgrad", [](Options& of) -> bool& { return of.amsgrad(); },
                   /*chooses_states=*/true}}};
}

}  // namespace

ElementwiseForm<torch::optim::AdamWOptions, torch::optim::AdamWParamState>
ElementwiseTraits<torch::optim::AdamW>::form() {
  return adam_form<torch::optim::AdamWOptions, torch::optim::AdamWParamState>("AdamW");
}

ElementwiseForm<torch::optim::AdamOptions, torch::optim::AdamParamState>
ElementwiseTraits<torch::optim::Adam>::form() {
  return adam_form<torch::optim::AdamOptions, torch::optim::AdamParamState>("Adam");
}

ElementwiseForm<torch::optim::SGDOptions, torch::optim::SGDParamState>
ElementwiseTraits<torch::optim::SGD>::form() {
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  return {.name = "SGD",
          .states = {{"momentum_buffer",
                      [](State& of) -> at::Tensor& { return of.momentum_buffer(); }}},
          .step = {},
          .numbers = {{"momentum", [](Options& of) -> double& { return of.momentum(); }},
                      {"dampening", [](Options& of) -> double& { return of.dampening(); }},
                      {"weight_decay", [](Options& of) -> double& { return of.weight_decay(); }},
                      {"nesterov", [](Options& of) -> bool& { return of.nesterov(); }}}};
}

ElementwiseForm<torch::optim::AdagradOptions, torch::optim::AdagradParamState>
ElementwiseTraits<torch::optim::Adagrad>::form() {
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  return {.name = "Adagrad",
          .states = {{"sum", [](State& of) -> at::Tensor& { return of.sum(); }}},
          .step = [](State& of) -> int64_t& { return of.step(); },
          .numbers = {{"lr_decay", [](Options& of) -> double& { return of.lr_decay(); }},
                      {"weight_decay", [](Options& of) -> double& { return of.weight_decay(); }},
                      {"initial_accumulator_value",
                       [](Options& of) -> double& { return of.initial_accumulator_value(); }},
                      {"eps", [](Options& of) -> double& { return of.eps(); }}}};
}

ElementwiseForm<torch::optim::RMSpropOptions, torch::optim::RMSpropParamState>
ElementwiseTraits<torch::optim::RMSprop>::form() {
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  return {
      .name = "RMSprop",
      .states = {{"square_avg", [](State& of) -> at::Tensor& { return of.square_avg(); }},
                 {"momentum_buffer", [](State& of) -> at::Tensor& { return of.momentum_buffer(); }},
                 {"grad_avg", [](State& of) -> at::Tensor& { return of.grad_avg(); }}},
      .step = [](State& of) -> int64_t& { return of.step(); },
      .numbers = {{"alpha", [](Options& of) -> double& { return of.alpha(); }},
                  {"eps", [](Options& of) -> double& { return of.eps(); }},
                  {"weight_decay", [](Options& of) -> double& { return of.weight_decay(); }},
                  {"momentum", [](Options& of) -> double& { return of.momentum(); }},
                  {"centered", [](Options& of) -> bool& { return of.centered(); },
                   /*chooses_states=*/true}}};
}

}  // namespace tessera
