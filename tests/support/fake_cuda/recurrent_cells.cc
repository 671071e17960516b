#include <optional>
#include <tuple>

#include <ATen/ATen.h>

#include "tessera/tests/support/fake_cuda/kernels.h"

namespace tessera::internal::testing {
namespace {

using at::Tensor;

Tensor with_bias(const Tensor& gates, const std::optional<Tensor>& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}

Tensor sum_over_configurations(const Tensor& gates, bool has_bias) {
  return has_bias ? gates.sum(0) : Tensor();
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                             const Tensor& cx,
                                             const std::optional<Tensor>& input_bias,
                                             const std::optional<Tensor>& hidden_bias) {
  const Tensor sum = with_bias(hidden_gates, hidden_bias) + with_bias(input_gates, input_bias);
  const auto parts = sum.chunk(4, 1);
  const Tensor in = parts[0].sigmoid();
  const Tensor forget = parts[1].sigmoid();
  const Tensor cell = parts[2].tanh();
  const Tensor out = parts[3].sigmoid();
  const Tensor cy = forget * cx + in * cell;
  return {out * cy.tanh(), cy, at::cat({in, forget, cell, out}, 1)};
}

std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const std::optional<Tensor>& grad_hy,
                                                      const std::optional<Tensor>& grad_cy,
                                                      const Tensor& cx, const Tensor& cy,
                                                      const Tensor& workspace, bool has_bias) {
  const auto parts = workspace.chunk(4, 1);
  const Tensor &in = parts[0], &forget = parts[1], &cell = parts[2], &out = parts[3];
  const bool has_hy = grad_hy && grad_hy->defined();
  const bool has_cy = grad_cy && grad_cy->defined();
  if (!has_hy && !has_cy) return {};
  const Tensor squashed = cy.tanh();
  const Tensor grad = has_hy ? *grad_hy : at::zeros_like(cx);
  Tensor inner = grad * out * (1 - squashed * squashed);
  if (has_cy) inner = inner + *grad_cy;
  const Tensor gates = at::cat({inner * cell * in * (1 - in), inner * cx * forget * (1 - forget),
                                inner * in * (1 - cell * cell), grad * squashed * out * (1 - out)},
                               1);
  return {gates, inner * forget, sum_over_configurations(gates, has_bias)};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& input_gates, const Tensor& hidden_gates,
                                    const Tensor& hx, const std::optional<Tensor>& input_bias,
                                    const std::optional<Tensor>& hidden_bias) {
  const auto from_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto from_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const Tensor reset = (from_hidden[0] + from_input[0]).sigmoid();
  const Tensor update = (from_hidden[1] + from_input[1]).sigmoid();
  const Tensor fresh = (from_input[2] + from_hidden[2] * reset).tanh();
  const Tensor hy = (hx - fresh) * update + fresh;
  return {hy, at::cat({reset, update, fresh, hx, from_hidden[2]}, 1)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& workspace,
                                                                     bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const Tensor &reset = parts[0], &update = parts[1], &fresh = parts[2], &hx = parts[3];
  const Tensor to_update = grad * (hx - fresh) * (1 - update) * update;
  const Tensor to_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor to_reset = to_fresh * parts[4] * (1 - reset) * reset;
  const Tensor input = at::cat({to_reset, to_update, to_fresh}, 1);
  const Tensor hidden = at::cat({to_reset, to_update, to_fresh * reset}, 1);
  return {input, hidden, grad * update, sum_over_configurations(input, has_bias),
          sum_over_configurations(hidden, has_bias)};
}

}  // namespace

void add_recurrent_cells(torch::Library& kernels) {
  kernels.impl("_thnn_fused_lstm_cell", lstm_cell);
  kernels.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  kernels.impl("_thnn_fused_gru_cell", gru_cell);
  kernels.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

}  // namespace tessera::internal::testing
