// Classifies handwritten digits. Network, data, optimizer and loop follow cpp/mnist of
// pytorch/examples; the code is new.
//
// Arguments: [<folder with MNIST's four files> [<epochs> [<batches per epoch>]]]
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tessera/tessera.h>
#include <torch/torch.h>

constexpr int64_t kBatch = 64;
constexpr int64_t kTestBatch = 1000;
constexpr int64_t kLogEvery = 10;

struct Net : torch::nn::Module {
  Net() {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("drop", drop);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1(x), 2));
    x = torch::relu(torch::max_pool2d(drop(conv2(x)), 2));
    x = torch::relu(fc1(x.flatten(1)));
    x = torch::dropout(x, /*p=*/0.5, is_training());
    return torch::log_softmax(fc2(x), /*dim=*/1);
  }

  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 10, /*kernel_size=*/5)};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(10, 20, /*kernel_size=*/5)};
  torch::nn::Dropout2d drop;
  torch::nn::Linear fc1{320, 50};
  torch::nn::Linear fc2{50, 10};
};

template <typename Loader>
void train(Net& model, Loader& loader, tessera::Engine& engine, int64_t epoch, int64_t batches) {
  model.train();
  int64_t index = 0;
  for (auto& batch : loader) {
    if (index == batches) break;
    torch::Tensor loss = torch::nll_loss(model.forward(batch.data), batch.target);
    loss.backward();
    engine.step();
    if (index++ % kLogEvery == 0) {
      std::printf("epoch %ld, batch %ld: loss %.4f\n", epoch, index, loss.item<float>());
    }
  }
}

template <typename Loader>
void test(Net& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model.eval();
  double loss = 0;
  int64_t correct = 0, images = 0;
  for (auto& batch : loader) {
    torch::Tensor output = model.forward(batch.data);
    loss += torch::nll_loss(output, batch.target, {}, torch::Reduction::Sum).item().toDouble();
    correct += output.argmax(1).eq(batch.target).sum().item().toLong();
    images += batch.data.size(0);
  }
  std::printf("test: loss %.4f, accuracy %.3f\n", loss / images, double(correct) / images);
}

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "./data";
  int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 10;
  int64_t batches = argc > 3 ? std::atoll(argv[3]) : -1;
  auto world = tessera::init_process_group();
  if (world->rank() != 0) std::freopen("/dev/null", "w", stdout);  // one rank prints
  torch::manual_seed(1 + world->rank());  // dropout differs by rank; parameters are rank 0's
  const char* strategy = std::getenv("STRATEGY");
  tessera::Options options{
      .strategy = tessera::parse_strategy(strategy != nullptr ? strategy : "zero3").value()};

  Net model;
  auto engine =
      tessera::parallelize(model, torch::optim::SGDOptions(0.01).momentum(0.5), options, world);

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
    train(model, *train_loader, *engine, epoch, batches);
    test(model, *test_loader);
  }
  std::printf("parameters %016lx\n", tessera::parameter_hash(*engine));
}
