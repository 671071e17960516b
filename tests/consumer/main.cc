// A user's program: trains with the installed package, alone or on ranks.
#include <cstdio>

#include <tessera/tessera.h>

int main() {
  torch::manual_seed(0);
  auto world = tessera::init_process_group();
  auto model = std::make_shared<torch::nn::LinearImpl>(4, 1);
  auto engine = tessera::parallelize(model, torch::optim::AdamWOptions(0.1),
                                     {.strategy = tessera::Strategy::kZero2}, world);
  const auto input = torch::randn({16, 4});
  const auto target = input.sum(1, /*keepdim=*/true);
  const tessera::data::DistributedSampler sampler(input.size(0), *world);
  double first = 0, last = 0;
  for (int step = 0; step < 20; ++step) {
    auto loss = torch::mse_loss(model->forward(input), target);
    loss.backward();
    engine->step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  std::printf("loss %.4f -> %.4f\n", first, last);
  const bool has_samples = static_cast<int64_t>(sampler.indices().size()) == 16 / world->size();
  return last < first && has_samples ? 0 : 1;
}
