#include "tessera/tests/support/layer_cases.h"

#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/script.h>
#include <torch/torch.h>

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;
using at::Tensor;
using Loss = LayerCase::Loss;

/// Registers `layer` as "layer", or under `name`.
template <typename Holder>
Holder in(nn::Module& model, Holder layer, const std::string& name = "layer") {
  return model.register_module(name, std::move(layer));
}

Tensor loss_of(const Tensor& output) { return output.square().mean() + output.sin().mean(); }

/// Puts a layer between two linear ones, so that gradients pass through it and there are more
/// units.
template <typename Holder>
std::function<Loss(nn::Module&)> wrapped(Holder (*make)(), std::vector<int64_t> input,
                                         int64_t outputs, bool is_training = true) {
  return [=](nn::Module& model) -> Loss {
    auto before = in(model, nn::Linear(input.back(), input.back()), "before");
    auto layer = in(model, make());
    auto after = in(model, nn::Linear(outputs, 3), "after");
    if (!is_training) model.eval();
    return [=](Inputs& inputs) mutable {
      return loss_of(after(layer(at::tanh(before(inputs.normal(input))))));
    };
  };
}

Loss recurrent(nn::Module& model) {
  auto lstm = in(model, nn::LSTM(nn::LSTMOptions(5, 7).num_layers(2)));
  auto after = in(model, nn::Linear(7, 3), "after");
  return [=](Inputs& inputs) mutable {
    return loss_of(after(std::get<0>(lstm(inputs.normal({4, 3, 5})))));
  };
}

Loss packed(nn::Module& model) {
  auto lstm = in(model, nn::LSTM(nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true)));
  auto after = in(model, nn::Linear(14, 3), "after");
  return [=](Inputs& inputs) mutable {
    const auto sequence = nn::utils::rnn::pack_padded_sequence(
        inputs.normal({4, 3, 5}), torch::tensor({4, 2, 1}, torch::kLong));
    const auto [output, state] = lstm->forward_with_packed_input(sequence);
    return loss_of(after(output.data())) + loss_of(std::get<0>(state));
  };
}

template <typename Holder, typename Settings>
Loss simple_recurrent(nn::Module& model) {
  auto layer = in(model, Holder(Settings(5, 7).num_layers(2)));
  auto after = in(model, nn::Linear(7, 3), "after");
  return [=](Inputs& inputs) mutable {
    return loss_of(after(std::get<0>(layer(inputs.normal({4, 3, 5})))));
  };
}

Loss cells(nn::Module& model) {
  auto lstm = in(model, nn::LSTMCell(5, 7), "lstm");
  auto gru = in(model, nn::GRUCell(7, 7), "gru");
  auto rnn = in(model, nn::RNNCell(7, 7), "rnn");
  return [=](Inputs& inputs) mutable {
    auto [hidden, cell] = lstm(inputs.normal({3, 5}));
    for (int i = 0; i < 2; ++i) {
      std::tie(hidden, cell) = lstm(inputs.normal({3, 5}), std::make_tuple(hidden, cell));
      hidden = rnn(gru(hidden, hidden), hidden);
    }
    return loss_of(hidden) + loss_of(cell);
  };
}

/// Also runs without autograd, where other kernels run.
Loss recurrent_without_graph(nn::Module& model) {
  const Loss with_graph = recurrent(model);
  return [=](Inputs& inputs) {
    Tensor constant;
    {
      const at::NoGradGuard no_grad;
      constant = with_graph(inputs);
    }
    return with_graph(inputs) * constant;
  };
}

Loss attention(nn::Module& model) {
  auto layer = in(model, nn::MultiheadAttention(12, 3));
  return [=](Inputs& inputs) mutable {
    const Tensor x = inputs.normal({4, 2, 12});
    const auto [output, weights] = layer(x, x, x);
    return loss_of(output) + loss_of(weights);
  };
}

Loss cross_attention(nn::Module& model) {
  auto layer =
      in(model, nn::MultiheadAttention(
                    nn::MultiheadAttentionOptions(12, 3).kdim(5).vdim(5).add_bias_kv(true)));
  return [=](Inputs& inputs) mutable {
    return loss_of(std::get<0>(
        layer(inputs.normal({4, 2, 12}), inputs.normal({3, 2, 5}), inputs.normal({3, 2, 5}))));
  };
}

Loss transformer_encoder(nn::Module& model) {
  const auto layer = nn::TransformerEncoderLayer(
      nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0.0));
  auto encoder = in(model, nn::TransformerEncoder(nn::TransformerEncoderOptions(layer, 3)));
  return [=](Inputs& inputs) mutable { return loss_of(encoder(inputs.normal({4, 2, 8}))); };
}

Loss transformer(nn::Module& model) {
  auto layer = in(model, nn::Transformer(nn::TransformerOptions(8, 2)
                                             .num_encoder_layers(2)
                                             .num_decoder_layers(2)
                                             .dim_feedforward(12)
                                             .dropout(0.0)));
  return [=](Inputs& inputs) mutable {
    return loss_of(layer(inputs.normal({4, 2, 8}), inputs.normal({3, 2, 8})));
  };
}

Loss channels_last(nn::Module& model) {
  auto first = in(model, nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)), "first");
  auto second = in(model, nn::Conv2d(nn::Conv2dOptions(8, 4, 3).groups(2)), "second");
  for (nn::Conv2d* layer : {&first, &second}) {
    Tensor& weight = (*layer)->weight;
    weight.set_data(weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  }
  return [=](Inputs& inputs) mutable {
    const Tensor x = inputs.normal({2, 3, 6, 6}).contiguous(at::MemoryFormat::ChannelsLast);
    return loss_of(second(at::relu(first(x))));
  };
}

Loss embedding(nn::Module& model, bool is_sparse) {
  auto layer =
      in(model, nn::Embedding(nn::EmbeddingOptions(11, 7).padding_idx(2).sparse(is_sparse)));
  auto after = in(model, nn::Linear(7, 3), "after");
  return [=](Inputs& inputs) mutable { return loss_of(after(layer(inputs.integers(11, {3, 4})))); };
}

template <typename Mode>
Loss embedding_bag(nn::Module& model, Mode mode, bool is_sparse = false) {
  auto layer =
      in(model, nn::EmbeddingBag(nn::EmbeddingBagOptions(11, 7).mode(mode).sparse(is_sparse)));
  auto after = in(model, nn::Linear(7, 3), "after");
  return [=](Inputs& inputs) mutable { return loss_of(after(layer(inputs.integers(11, {3, 4})))); };
}

Loss bilinear(nn::Module& model) {
  auto layer = in(model, nn::Bilinear(5, 7, 3));
  return [=](Inputs& inputs) mutable {
    return loss_of(layer(inputs.normal({4, 5}), inputs.normal({4, 7})));
  };
}

Loss any_modules(nn::Module& model) {
  auto layers = in(
      model, nn::Sequential(nn::Linear(5, 7), nn::LayerNorm(nn::LayerNormOptions({7})), nn::PReLU(),
                            nn::Linear(7, 7), nn::Functional(torch::tanh), nn::Linear(7, 3)));
  return [=](Inputs& inputs) mutable { return loss_of(layers->forward(inputs.normal({4, 5}))); };
}

Loss adaptive_softmax(nn::Module& model) {
  auto layer = in(model, nn::AdaptiveLogSoftmaxWithLoss(
                             nn::AdaptiveLogSoftmaxWithLossOptions(8, 20, {5, 11}).div_value(2.0)));
  return [=](Inputs& inputs) mutable {
    return -layer(inputs.normal({6, 8}), inputs.integers(20, {6})).output.mean();
  };
}

/// A TorchScript module that shares its parameters with a torch::nn module.
Loss script(nn::Module& model) {
  auto layer = in(model, nn::Linear(5, 7));
  auto after = in(model, nn::Linear(7, 3), "after");
  torch::jit::Module scripted("scripted");
  scripted.register_parameter("weight", layer->weight, /*is_buffer=*/false);
  scripted.register_parameter("bias", layer->bias, /*is_buffer=*/false);
  scripted.register_parameter("after", after->weight, /*is_buffer=*/false);
  scripted.define(R"(
    def forward(self, x):
        for i in range(3):
            x = torch.tanh(x.matmul(self.weight.t()) + self.bias)[:, 0:5] * self.bias.sum()
        return torch.relu(torch.tanh(x.matmul(self.weight.t()) * 2 + self.bias).matmul(self.after.t()))
  )");
  return [=](Inputs& inputs) mutable {
    Tensor sum;
    for (int call = 0; call < 3; ++call) {  // first calls are profiled, later ones optimised
      const Tensor loss = loss_of(scripted.forward({inputs.normal({4, 5})}).toTensor());
      sum = sum.defined() ? sum + loss : loss;
    }
    return sum + loss_of(after->bias);
  };
}

Loss autocast(nn::Module& model) {
  auto first = in(model, nn::Linear(5, 7), "first");
  auto second = in(model, nn::Linear(7, 3), "second");
  return [=](Inputs& inputs) mutable {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const Tensor output = second(at::tanh(first(inputs.normal({4, 5}))));
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return loss_of(output.to(at::kFloat));
  };
}

std::vector<LayerCase> make_layer_cases() {
  const auto embedding_dense = [](nn::Module& model) { return embedding(model, false); };
  const auto embedding_sparse = [](nn::Module& model) { return embedding(model, true); };
  return {
      {"Lstm", recurrent},
      {"LstmPackedBidirectional", packed},
      {"LstmWithoutGraph", recurrent_without_graph},
      {"Gru", simple_recurrent<nn::GRU, nn::GRUOptions>},
      {"Rnn", simple_recurrent<nn::RNN, nn::RNNOptions>},
      {"Cells", cells},
      {"MultiheadAttention", attention},
      {"MultiheadAttentionOtherKeys", cross_attention},
      {"TransformerEncoder", transformer_encoder},
      {"Transformer", transformer},
      {"Linear", wrapped<nn::Linear>([] { return nn::Linear(6, 5); }, {4, 6}, 5)},
      {"Conv1d", wrapped<nn::Conv1d>(
                     [] { return nn::Conv1d(nn::Conv1dOptions(4, 6, 3).groups(2).padding(1)); },
                     {2, 4, 8}, 8)},
      {"Conv2d", wrapped<nn::Conv2d>(
                     [] { return nn::Conv2d(nn::Conv2dOptions(3, 5, 3).dilation(2).padding(2)); },
                     {2, 3, 6, 6}, 6)},
      {"Conv3d",
       wrapped<nn::Conv3d>([] { return nn::Conv3d(nn::Conv3dOptions(2, 3, 3).padding(1)); },
                           {1, 2, 4, 4, 4}, 4)},
      {"ChannelsLast", channels_last},
      {"ConvTranspose1d",
       wrapped<nn::ConvTranspose1d>(
           [] { return nn::ConvTranspose1d(nn::ConvTranspose1dOptions(4, 3, 3).padding(1)); },
           {2, 4, 8}, 8)},
      {"ConvTranspose2d",
       wrapped<nn::ConvTranspose2d>(
           [] { return nn::ConvTranspose2d(nn::ConvTranspose2dOptions(3, 4, 3).padding(1)); },
           {2, 3, 6, 6}, 6)},
      {"ConvTranspose3d",
       wrapped<nn::ConvTranspose3d>(
           [] { return nn::ConvTranspose3d(nn::ConvTranspose3dOptions(2, 3, 3).padding(1)); },
           {1, 2, 4, 4, 4}, 4)},
      {"BatchNorm1d", wrapped<nn::BatchNorm1d>([] { return nn::BatchNorm1d(6); }, {8, 6}, 6)},
      {"BatchNorm2d", wrapped<nn::BatchNorm2d>([] { return nn::BatchNorm2d(3); }, {2, 3, 4, 4}, 4)},
      {"BatchNormEvaluating",
       wrapped<nn::BatchNorm1d>([] { return nn::BatchNorm1d(6); }, {8, 6}, 6, false)},
      {"Embedding", embedding_dense},
      {"SparseEmbedding", embedding_sparse},
      {"EmbeddingBagSum", [](nn::Module& model) { return embedding_bag(model, torch::kSum); }},
      {"EmbeddingBagMean", [](nn::Module& model) { return embedding_bag(model, torch::kMean); }},
      {"EmbeddingBagMax", [](nn::Module& model) { return embedding_bag(model, torch::kMax); }},
      {"EmbeddingBagSparse",
       [](nn::Module& model) { return embedding_bag(model, torch::kSum, true); }},
      {"LayerNorm",
       wrapped<nn::LayerNorm>([] { return nn::LayerNorm(nn::LayerNormOptions({6})); }, {4, 6}, 6)},
      {"GroupNorm", wrapped<nn::GroupNorm>([] { return nn::GroupNorm(2, 4); }, {2, 4, 6}, 6)},
      {"InstanceNorm1d",
       wrapped<nn::InstanceNorm1d>(
           [] { return nn::InstanceNorm1d(nn::InstanceNorm1dOptions(4).affine(true)); }, {2, 4, 6},
           6)},
      {"PReLU", wrapped<nn::PReLU>([] { return nn::PReLU(nn::PReLUOptions().num_parameters(4)); },
                                   {2, 4, 6}, 6)},
      {"Bilinear", bilinear},
      {"SequentialOfAnyModules", any_modules},
      {"AdaptiveLogSoftmax", adaptive_softmax},
      {"TorchScript", script},
      {"Autocast", autocast},
  };
}

}  // namespace

Inputs::Inputs(int rank, int step)
    : generator_(at::make_generator<at::CPUGeneratorImpl>(
          static_cast<uint64_t>(7000 + 100 * step + rank))) {}

Tensor Inputs::normal(std::vector<int64_t> sizes) {
  return at::randn(sizes, generator_, at::TensorOptions(at::kFloat));
}

Tensor Inputs::integers(int64_t high, std::vector<int64_t> sizes) {
  return at::randint(0, high, sizes, generator_, at::kLong);
}

std::ostream& operator<<(std::ostream& stream, const LayerCase& layer) {
  return stream << layer.name;
}

const std::vector<LayerCase>& layer_cases() {
  static const std::vector<LayerCase> all = make_layer_cases();
  return all;
}

}  // namespace tessera::internal::testing
