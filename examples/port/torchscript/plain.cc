// Trains a network further that was scripted in Python (export.py writes one), and saves it again.
// The loop follows cpp/mnist and the use of torch::jit::load follows cpp/transfer-learning of
// pytorch/examples; the code is new.
//
// Arguments: [<scripted network> [<folder with MNIST's four files> [<epochs>
//   [<batches per epoch>]]]]
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <torch/script.h>
#include <torch/torch.h>

constexpr int64_t kBatch = 64;
constexpr int64_t kTestBatch = 1000;
constexpr int64_t kLogEvery = 10;

int main(int argc, char** argv) {
  std::string network = argc > 1 ? argv[1] : "./network.pt";
  std::string folder = argc > 2 ? argv[2] : "./data";
  int64_t epochs = argc > 3 ? std::atoll(argv[3]) : 1;
  int64_t batches = argc > 4 ? std::atoll(argv[4]) : -1;
  torch::manual_seed(1);

  torch::jit::Module module = torch::jit::load(network);
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : module.parameters()) parameters.push_back(parameter);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.01).momentum(0.5));

  using torch::data::datasets::MNIST;
  auto prepared = [&](MNIST::Mode mode) {
    return MNIST(folder, mode)
        .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
        .map(torch::data::transforms::Stack<>());
  };
  auto train_set = prepared(MNIST::Mode::kTrain);
  auto train_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      std::move(train_set), kBatch);
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      prepared(MNIST::Mode::kTest), kTestBatch);

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    module.train();
    int64_t index = 0;
    for (auto& batch : *train_loader) {
      if (index == batches) break;
      optimizer.zero_grad();
      torch::Tensor output = module.forward({batch.data}).toTensor();
      torch::Tensor loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      optimizer.step();
      if (index++ % kLogEvery == 0) {
        std::printf("epoch %ld, batch %ld: loss %.4f\n", epoch, index, loss.item<float>());
      }
    }
  }

  module.eval();
  {
    torch::NoGradGuard no_grad;
    double loss = 0;
    int64_t images = 0;
    for (auto& batch : *test_loader) {
      torch::Tensor output = module.forward({batch.data}).toTensor();
      loss +=
          batch.data.size(0) * torch::cross_entropy_loss(output, batch.target).item().toDouble();
      images += batch.data.size(0);
    }
    std::printf("test: loss %.6f\n", loss / images);
  }
  module.save("tuned.pt");
}
