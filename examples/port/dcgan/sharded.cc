// Two networks that train each other to draw digits. Networks, data, optimizers, loop and
// checkpoints follow cpp/dcgan of pytorch/examples; the code is new.
//
// Arguments: [<folder with MNIST's four files> [<epochs> [<batches per epoch>
//   [<batches between checkpoints> [restore]]]]]
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <tessera/tessera.h>
#include <torch/torch.h>

namespace nn = torch::nn;

constexpr int64_t kNoise = 100;
constexpr int64_t kBatch = 64;
constexpr int64_t kLogEvery = 10;
constexpr int64_t kSamples = 10;

nn::ConvTranspose2d up(int64_t from, int64_t to, int64_t size, int64_t stride, int64_t padding) {
  return nn::ConvTranspose2d(
      nn::ConvTranspose2dOptions(from, to, size).stride(stride).padding(padding).bias(false));
}

nn::Conv2d down(int64_t from, int64_t to, int64_t size, int64_t stride, int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, size).stride(stride).padding(padding).bias(false));
}

nn::LeakyReLU leaky() { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)); }

/// Saves parameters, buffers and optimizer state by name, the same for any strategy and world.
void save(tessera::Engine& engine, const std::string& path) {
  c10::Dict<std::string, torch::Tensor> tensors;
  tessera::StateDict state = engine.state_dict(tessera::StateScope::kOneRank);
  for (const auto& [name, entry] : state.entries) tensors.insert(name, entry.tensor());
  if (engine.group().rank() != 0) return;
  std::vector<char> bytes = torch::pickle_save(tensors);
  std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
}

void load(tessera::Engine& engine, const std::string& path) {
  tessera::StateDict state;  // rank 0's is enough
  if (engine.group().rank() == 0) {
    std::ifstream file(path, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    for (const auto& pair : torch::pickle_load(bytes).toGenericDict()) {
      torch::Tensor tensor = pair.value().toTensor().contiguous();
      state.entries[pair.key().toStringRef()] = {tensor.sizes().vec(),
                                                 tensor.strides().vec(),
                                                 tensor.scalar_type(),
                                                 {{0, tensor.reshape(-1)}}};
    }
  }
  engine.load_state_dict(state);
}

int main(int argc, char** argv) {
  std::string folder = argc > 1 ? argv[1] : "./data";
  int64_t epochs = argc > 2 ? std::atoll(argv[2]) : 30;
  int64_t batches = argc > 3 ? std::atoll(argv[3]) : -1;
  int64_t checkpoint_every = argc > 4 ? std::atoll(argv[4]) : 200;
  bool restore = argc > 5;
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

  nn::Sequential generator(                                        //
      up(kNoise, 256, 4, 1, 0), nn::BatchNorm2d(256), nn::ReLU(),  // 4 x 4
      up(256, 128, 3, 2, 1), nn::BatchNorm2d(128), nn::ReLU(),     // 7 x 7
      up(128, 64, 4, 2, 1), nn::BatchNorm2d(64), nn::ReLU(),       // 14 x 14
      up(64, 1, 4, 2, 1), nn::Tanh());                             // 28 x 28
  nn::Sequential discriminator(                                    //
      down(1, 64, 4, 2, 1), leaky(),                               // 14 x 14
      down(64, 128, 4, 2, 1), nn::BatchNorm2d(128), leaky(),       // 7 x 7
      down(128, 256, 4, 2, 1), nn::BatchNorm2d(256), leaky(),      // 3 x 3
      down(256, 1, 3, 1, 0), nn::Sigmoid(), nn::Flatten(nn::FlattenOptions().start_dim(0)));

  auto adam = torch::optim::AdamOptions(2e-4).betas({0.5, 0.999});
  auto generator_engine = tessera::parallelize(generator, adam, options, world);
  auto discriminator_engine = tessera::parallelize(discriminator, adam, options, world);

  auto data = torch::data::datasets::MNIST(folder)
                  .map(torch::data::transforms::Normalize<>(0.5, 0.5))
                  .map(torch::data::transforms::Stack<>());
  auto loader =
      torch::data::make_data_loader(std::move(data), torch::data::DataLoaderOptions(kBatch));

  if (restore) {
    load(*generator_engine, "generator.pt");
    load(*discriminator_engine, "discriminator.pt");
  }

  for (int64_t epoch = 1; epoch <= epochs; ++epoch) {
    int64_t index = 0;
    for (torch::data::Example<>& batch : *loader) {
      if (index == batches) break;
      torch::Tensor real = mine(batch.data);

      // The discriminator: one backward for real images, one for generated ones.
      discriminator->zero_grad();
      torch::Tensor real_labels = mine(torch::empty(batch.data.size(0)).uniform_(0.8, 1.0));
      torch::Tensor real_loss =
          torch::binary_cross_entropy(discriminator->forward(real), real_labels);
      real_loss.backward();
      torch::Tensor noise = mine(torch::randn({batch.data.size(0), kNoise, 1, 1}));
      torch::Tensor fake = generator->forward(noise);
      torch::Tensor fake_loss = torch::binary_cross_entropy(discriminator->forward(fake.detach()),
                                                            torch::zeros(fake.size(0)));
      fake_loss.backward();
      discriminator_engine->step();

      // The generator, through the discriminator.
      generator->zero_grad();
      torch::Tensor generator_loss =
          torch::binary_cross_entropy(discriminator->forward(fake), torch::ones(fake.size(0)));
      generator_loss.backward();
      generator_engine->step();

      if (index++ % kLogEvery == 0) {
        std::printf("epoch %ld, batch %ld: discriminator %.4f, generator %.4f\n", epoch, index,
                    (real_loss + fake_loss).item<float>(), generator_loss.item<float>());
      }
      if (index % checkpoint_every == 0) {
        save(*generator_engine, "generator.pt");
        save(*discriminator_engine, "discriminator.pt");
        torch::Tensor samples = generator->forward(torch::randn({kSamples, kNoise, 1, 1}));
        if (world->rank() == 0) torch::save((samples + 1) / 2, "samples.pt");
      }
    }
  }
  std::printf("parameters %016lx %016lx\n", tessera::parameter_hash(*generator_engine),
              tessera::parameter_hash(*discriminator_engine));
}
