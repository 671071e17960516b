#include "tessera/ddp/batch_statistics.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/types.h>

#include "tessera/core/grad/autograd_node.h"
#include "tessera/core/grad/loss_weight_scope.h"

namespace tessera::internal {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

/// Returns the dtype that statistics are rounded to. It is fp32 for 16-bit inputs, too, because
/// LibTorch's kernels need it so.
at::ScalarType statistics_dtype(const Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// Returns `parameter` (weight or bias) in the dtype that it must have for kernels whose input is
/// `input`. Returns an undefined tensor if `parameter` is undefined.
Tensor beside(const Tensor& input, const Tensor& parameter) {
  if (!parameter.defined() || input.element_size() > 2) return parameter;
  return parameter.to(at::kFloat);
}

/// Returns `values` [C] as [1, C, 1, ...], to combine with `input`.
Tensor per_channel(const Tensor& values, const Tensor& input) {
  std::vector<int64_t> sizes(static_cast<size_t>(input.dim()), 1);
  sizes[1] = values.numel();
  return values.view(sizes);
}

/// Mean and variance per channel of some samples.
struct Moments {
  double count = 0.0;           ///< number of values per channel
  Tensor mean, sum_of_squares;  ///< fp64 [C]; the squares are of deviations from the mean
};

Moments moments_of(const Tensor& input) {
  const int64_t channels = input.size(1);
  const auto in_double = input.options().dtype(at::kDouble);
  if (input.numel() == 0) {
    return {.count = 0.0,
            .mean = at::zeros({channels}, in_double),
            .sum_of_squares = at::zeros({channels}, in_double)};
  }
  const int64_t per_channel = input.numel() / channels;
  const auto count = static_cast<double>(per_channel);
  // Passed in place of the layer's running statistics. Nothing uses its values, but its dtype
  // decides the dtype of the results.
  const Tensor unused = at::zeros({2, channels}, input.options().dtype(statistics_dtype(input)));
  const auto [mean, variance] = at::batch_norm_update_stats(input, unused[0], unused[1], 0.0);
  return {.count = count,
          .mean = mean.to(at::kDouble),
          .sum_of_squares = variance.to(at::kDouble) * count};
}

/// Merges the moments of other samples into `a`: Chan, Golub, LeVeque, equations 2.1. On the host.
void merge(Moments& a, double count, const double* mean, const double* sum_of_squares) {
  if (count == 0.0) return;
  auto* const mean_of_all = a.mean.mutable_data_ptr<double>();
  auto* const squares_of_all = a.sum_of_squares.mutable_data_ptr<double>();
  const double total = a.count + count;
  for (int64_t channel = 0; channel < a.mean.numel(); ++channel) {
    const double delta = mean[channel] - mean_of_all[channel];
    mean_of_all[channel] += delta * (count / total);
    squares_of_all[channel] += sum_of_squares[channel] + delta * delta * (a.count * count / total);
  }
  a.count = total;
}

/// Returns the moments of all ranks, merged in rank order, so that every rank gets the same bits.
/// Collective. On the host.
Moments moments_of_all(const Moments& own, const BatchNormCall& call) {
  const int64_t channels = own.mean.numel();
  const int64_t words = 2 * channels + 1;
  const Tensor mine =
      at::cat({at::full({1}, own.count, own.mean.options()), own.mean, own.sum_of_squares});
  const Tensor gathered = at::empty({call.group->size() * words}, mine.options());
  call.group->all_gather(gathered, mine, absl::StrCat("statistics of ", call.layer))->wait();
  const Tensor on_host = gathered.cpu();
  Moments all{.mean = at::zeros({channels}, at::kDouble),
              .sum_of_squares = at::zeros({channels}, at::kDouble)};
  for (int rank = 0; rank < call.group->size(); ++rank) {
    const double* const theirs = on_host.const_data_ptr<double>() + rank * words;
    merge(all, theirs[0], theirs + 1, theirs + 1 + channels);
  }
  return all;
}

/// Moves `running` towards `update` by `momentum`, with one rounding.
void track(const Tensor& running, const Tensor& update, double momentum) {
  if (!running.defined()) return;
  const Tensor now = running.detach().to(at::kDouble);
  running.copy_(now * (1.0 - momentum) + update.to(running.device()) * momentum);
}

/// Holds a call in an AutogradContext.
struct HeldCall : torch::CustomClassHolder {
  explicit HeldCall(BatchNormCall held) : call(std::move(held)) {}
  BatchNormCall call;  // only eps, group and layer: save_for_backward() keeps the tensors
};

/// Returns this rank's sums per channel of the gradients, and of their products with the normalised
/// input. fp64 [2, C].
Tensor gradient_sums(const Tensor& gradient, const Tensor& input, const Tensor& mean,
                     const Tensor& variance, double eps) {
  if (input.numel() == 0) return at::zeros({2, mean.numel()}, mean.options().dtype(at::kDouble));
  // The two sums are the gradients of bias and weight in the backward for fixed statistics. They do
  // not depend on the values of the weight.
  const auto [unused, of_weight, of_bias] =
      at::native_batch_norm_backward(gradient, input, at::ones_like(mean), mean, variance, {}, {},
                                     /*train=*/false, eps, {false, true, true});
  return at::stack({of_bias, of_weight}).to(at::kDouble);
}

/// Returns the means over the `count` values of all ranks, where each rank's `sums` are weighted by
/// the weight of its loss. The means are divided by this rank's weight, because the engine
/// multiplies all gradients on this rank by that weight, also the parts of them that come from
/// other ranks' losses. Collective.
Tensor gradient_means(const Tensor& sums, const Tensor& input, double count,
                      const BatchNormCall& call) {
  const double weight = LossWeightScope::of_backward();
  TORCH_CHECK(
      weight > 0.0 || input.numel() == 0, "[", call.layer,
      "] backward: got a loss of weight 0 for a batch of ", input.size(0),
      " samples, expected none: the outputs of other ranks depend on them, and gradients of "
      "these would be multiplied by 0; give the layer an empty batch, or the loss a weight");
  const Tensor means = weight > 0.0 ? sums * weight : at::zeros_like(sums);
  call.group->all_reduce(means, ReduceOp::kSum, absl::StrCat("gradient sums of ", call.layer))
      ->wait();
  return means.div_(weight > 0.0 ? count * weight : count);
}

/// Returns the gradient of the input: weight / s * (g - mean(g) - x * mean(g * x)), where g is the
/// gradient of the output, s the square root of variance + eps, x = (input - mean) / s, and the
/// means are over all ranks. The two means are there because each value affects all others through
/// mean and variance.
Tensor input_gradient(const Tensor& gradient, const Tensor& input, const Tensor& weight,
                      const Tensor& mean, const Tensor& variance, const Tensor& means, double eps) {
  const Tensor inverse_deviation = (variance.to(at::kDouble) + eps).rsqrt();
  const auto channel = [&](const Tensor& values) {
    return per_channel(values.to(mean.scalar_type()), input);
  };
  Tensor scale = inverse_deviation;
  if (weight.defined()) scale = scale * weight.to(at::kDouble);
  Tensor result = input.to(mean.scalar_type()).sub(channel(mean));
  result.mul_(channel(means[1] * inverse_deviation).neg());
  result.add_(gradient).sub_(channel(means[0])).mul_(channel(scale));
  return result.to(input.scalar_type());
}

class NormalizeOverRanks : public torch::autograd::Function<NormalizeOverRanks> {
 public:
  /// `call` has the weight and the bias, too. They are also arguments, nullopt if undefined,
  /// because autograd tracks only arguments.
  static Variable forward(AutogradContext* context, const Tensor& input,
                          const std::optional<Tensor>& /*weight*/,
                          const std::optional<Tensor>& /*bias*/, const BatchNormCall& call) {
    const Moments all = moments_of_all(moments_of(input), call);
    TORCH_CHECK(all.count > 1.0, "[", call.layer, "] input: got ", all.count,
                " value(s) per channel in the batches of all ", call.group->size(),
                " ranks together, expected more than 1 in training; use larger batches, or eval()");
    track(call.running_mean, all.mean, call.momentum);
    track(call.running_var, all.sum_of_squares / (all.count - 1.0), call.momentum);

    const auto options = input.options().dtype(statistics_dtype(input));
    const Tensor mean = all.mean.to(options.device(), options.dtype().toScalarType());
    const Tensor variance =
        (all.sum_of_squares / all.count).to(options.device(), options.dtype().toScalarType());
    context->save_for_backward({input, call.weight, mean, variance});
    context->saved_data["count"] = all.count;
    context->saved_data["call"] = c10::IValue::make_capsule(c10::make_intrusive<HeldCall>(
        BatchNormCall{.eps = call.eps, .group = call.group, .layer = call.layer}));
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(input, beside(input, call.weight),
                                             beside(input, call.bias), mean, variance,
                                             /*training=*/false, 0.0, call.eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool creates_graph = at::GradMode::is_enabled();
    const at::NoGradGuard no_grad;
    const BatchNormCall& call =
        c10::static_intrusive_pointer_cast<HeldCall>(context->saved_data["call"].toCapsule())->call;
    const variable_list saved = context->get_saved_variables();
    const Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &variance = saved[3];
    const Tensor sums = gradient_sums(gradients[0], input, mean, variance, call.eps);
    variable_list results(4);
    if (weight.defined() && context->needs_input_grad(1))
      results[1] = sums[1].to(weight.scalar_type());
    if (weight.defined() && context->needs_input_grad(2))
      results[2] = sums[0].to(weight.scalar_type());
    if (context->needs_input_grad(0)) {
      const Tensor means =
          gradient_means(sums, input, context->saved_data["count"].toDouble(), call);
      results[0] = input_gradient(gradients[0], input, weight, mean, variance, means, call.eps);
    }
    return creates_graph ? once_differentiable(std::move(results), call.layer) : results;
  }

 private:
  /// Returns `results` as outputs of a node whose backward throws, because second derivatives would
  /// need sums over ranks as well.
  static variable_list once_differentiable(variable_list results, const std::string& layer) {
    for (Tensor& result : results) {
      if (result.defined()) result.set_requires_grad(true);
    }
    const auto refuses = make_node<torch::autograd::DelayedError>(
        absl::StrCat("[", layer,
                     "] backward: got a second derivative, which this layer has not; use "
                     "torch::nn::BatchNorm or GroupNorm where gradients are differentiated"),
        static_cast<int64_t>(results.size()));
    return (*refuses)(std::move(results));
  }
};

}  // namespace

Tensor normalize_over_ranks(const BatchNormCall& call) {
  const auto defined = [](const Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return NormalizeOverRanks::apply(call.input, defined(call.weight), defined(call.bias), call);
}

}  // namespace tessera::internal
