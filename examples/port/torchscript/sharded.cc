// Trains a network further that was scripted in Python (export.py writes one), and saves it again.
// The loop follows cpp/mnist and the use of torch::jit::load follows cpp/transfer-learning of
// pytorch/examples; the code is new.
//
// Arguments: [<scripted network> [<folder with MNIST's four files> [<epochs>
//   [<batches per epoch>]]]]
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <tessera/tessera.h>
#include <torch/script.h>
#include <torch/torch.h>

constexpr int64_t kBatch = 64;
constexpr int64_t kTestBatch = 1000;
constexpr int64_t kLogEvery = 10;

/// A torch::nn::Module with the tensors of a scripted module, under the same names.
struct Mirror : torch::nn::Module {
  explicit Mirror(const torch::jit::Module& script) {
    for (const auto& own : script.named_parameters(/*recurse=*/false)) {
      register_parameter(own.name, own.value, own.value.requires_grad());
    }
    for (const auto& own : script.named_buffers(/*recurse=*/false)) {
      register_buffer(own.name, own.value);
    }
    for (const auto& child : script.named_children()) {
      register_module(child.name, std::make_shared<Mirror>(child.value));
    }
  }
};

int main(int argc, char** argv) {
  std::string network = argc > 1 ? argv[1] : "./network.pt";
  std::string folder = argc > 2 ? argv[2] : "./data";
  int64_t epochs = argc > 3 ? std::atoll(argv[3]) : 1;
  int64_t batches = argc > 4 ? std::atoll(argv[4]) : -1;
  auto world = tessera::init_process_group();
  if (world->rank() != 0) std::freopen("/dev/null", "w", stdout);  // one rank prints
  torch::manual_seed(1);
  const char* strategy = std::getenv("STRATEGY");
  tessera::Options options{
      .strategy = tessera::parse_strategy(strategy != nullptr ? strategy : "zero3").value()};

  torch::jit::Module module = torch::jit::load(network);
  auto engine = tessera::parallelize(std::make_shared<Mirror>(module),
                                     torch::optim::SGDOptions(0.01).momentum(0.5), options, world);

  using torch::data::datasets::MNIST;
  auto prepared = [&](MNIST::Mode mode) {
    return MNIST(folder, mode)
        .map(torch::data::transforms::Normalize<>(0.1307, 0.3081))
        .map(torch::data::transforms::Stack<>());
  };
  auto train_set = prepared(MNIST::Mode::kTrain);
  size_t images = train_set.size().value();
  auto train_loader = torch::data::make_data_loader(
      std::move(train_set),
      torch::data::samplers::DistributedSequentialSampler(images, world->size(), world->rank()),
      kBatch / world->size());
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      prepared(MNIST::Mode::kTest), kTestBatch);

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    module.train();
    int64_t index = 0;
    for (auto& batch : *train_loader) {
      if (index == batches) break;
      torch::Tensor output = module.forward({batch.data}).toTensor();
      torch::Tensor loss = torch::cross_entropy_loss(output, batch.target);
      loss.backward();
      engine->step();
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
  std::printf("parameters %016lx\n", tessera::parameter_hash(*engine));
  auto whole = engine->full_parameters();  // save() reads raw memory
  if (world->rank() == 0) module.save("tuned.pt");
}
