// Two networks that train each other to draw digits: a Wasserstein GAN with gradient penalty
// (arXiv 1704.00028, algorithm 1). The penalty calls autograd::grad with create_graph, so its
// backward goes through another backward.
//
// Arguments: [<folder with MNIST's four files> [<epochs> [<batches per epoch>]]]
#include <cstdio>
#include <cstdlib>
#include <string>

#include <tessera/tessera.h>
#include <torch/torch.h>

namespace nn = torch::nn;

constexpr int64_t kNoise = 64;
constexpr int64_t kBatch = 48;
constexpr int64_t kCriticSteps = 5;  // per step of the generator
constexpr double kPenalty = 10;
constexpr int64_t kLogEvery = 10;

nn::LeakyReLU leaky() { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)); }

/// Returns the mean of (|slope of the critic| - 1)^2 at random points between real and fake images.
torch::Tensor penalty(nn::Sequential& critic, const torch::Tensor& real, const torch::Tensor& fake,
                      const torch::Tensor& mix) {
  torch::Tensor between = (mix * real + (1 - mix) * fake).requires_grad_();
  torch::Tensor slope =
      torch::autograd::grad({critic->forward(between).sum()}, {between}, /*grad_outputs=*/{},
                            /*retain_graph=*/true, /*create_graph=*/true)[0];
  return (slope.flatten(1).norm(2, /*dim=*/1) - 1).pow(2).mean();
}

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "./data";
  int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 30;
  int64_t batches = argc > 3 ? std::atoll(argv[3]) : -1;
  auto world = tessera::init_process_group();
  if (world->rank() != 0) std::freopen("/dev/null", "w", stdout);  // one rank prints
  torch::manual_seed(1);
  const char* strategy = std::getenv("STRATEGY");
  tessera::Options options{
      .strategy = tessera::parse_strategy(strategy != nullptr ? strategy : "zero3").value()};
  // Every rank draws the whole batch, from the same seed, and takes its rows.
  auto mine = [&](const torch::Tensor& batch) {
    return batch.tensor_split(world->size())[world->rank()];
  };

  nn::Sequential generator(
      nn::Linear(kNoise, 64 * 7 * 7), nn::ReLU(),
      nn::Unflatten(nn::UnflattenOptions(1, {64, 7, 7})),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(64, 32, 4).stride(2).padding(1)), nn::ReLU(),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(32, 1, 4).stride(2).padding(1)), nn::Tanh());
  nn::Sequential critic(nn::Conv2d(nn::Conv2dOptions(1, 32, 4).stride(2).padding(1)), leaky(),
                        nn::Conv2d(nn::Conv2dOptions(32, 64, 4).stride(2).padding(1)), leaky(),
                        nn::Flatten(), nn::Linear(64 * 7 * 7, 1));

  auto adam = torch::optim::AdamOptions(1e-4).betas({0.5, 0.9});
  auto generator_engine = tessera::parallelize(generator, adam, options, world);
  auto critic_engine = tessera::parallelize(critic, adam, options, world);

  auto data = torch::data::datasets::MNIST(folder)
                  .map(torch::data::transforms::Normalize<>(0.5, 0.5))
                  .map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader(
      std::move(data), torch::data::DataLoaderOptions(kBatch).drop_last(true));

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    int64_t index = 0;
    for (auto& batch : *loader) {
      if (index == batches) break;
      torch::Tensor real = mine(batch.data);
      torch::Tensor noise = mine(torch::randn({kBatch, kNoise}));
      torch::Tensor mix = mine(torch::rand({kBatch, 1, 1, 1}));

      critic_engine->zero_grad();  // drops what the generator's backward left in .grad
      torch::Tensor fake = generator->forward(noise).detach();
      torch::Tensor distance = critic->forward(real).mean() - critic->forward(fake).mean();
      torch::Tensor critic_loss = kPenalty * penalty(critic, real, fake, mix) - distance;
      critic_loss.backward();
      critic_engine->step();

      if (index % kCriticSteps == kCriticSteps - 1) {
        torch::Tensor generator_loss = -critic->forward(generator->forward(noise)).mean();
        generator_loss.backward();
        generator_engine->step();
      }
      if (index++ % kLogEvery == 0) {
        distance = distance.detach();
        world->all_reduce(distance, tessera::ReduceOp::kAvg, "distance")->wait();
        std::printf("epoch %ld, batch %ld: distance %.4f\n", epoch, index, distance.item<float>());
      }
    }
  }
  std::printf("parameters %016lx %016lx\n", tessera::parameter_hash(*generator_engine),
              tessera::parameter_hash(*critic_engine));
}
