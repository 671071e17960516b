// The memory that saving and loading need: a rank's blocks and a unit, never a rank's part of the
// state.
#include <malloc.h>

#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/safetensors.h"
#include "tessera/tests/support/rank_threads.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tests/zero/engine/engine_fixture.h"

namespace tessera::internal::testing {
namespace {

constexpr int kWorld = 2;
constexpr int64_t kLayers = 24;
constexpr int64_t kWidth = 512;
constexpr int64_t kUnitBytes = kWidth * kWidth * 4;
constexpr int64_t kStateBytes = 3 * kLayers * kUnitBytes;  // with two moments: 72 MiB
/// Of both ranks: for each a unit, a block being filled and one being verified, and heap memory for
/// manifests and names.
constexpr int64_t kMaxBytes = kWorld * (kUnitBytes + (2 << 20)) + (6 << 20);

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kMemoryIsOurs = false;  // includes shadow memory and quarantine
#else
constexpr bool kMemoryIsOurs = true;
#endif

struct Tower : torch::nn::Module {
  Tower() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    }
    register_module("layers", layers);
  }
  at::Tensor forward(at::Tensor x) { return layers->forward(std::move(x)); }
  torch::nn::Sequential layers;
};

int64_t status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(field + ":")) continue;
    int64_t kib = 0;
    std::istringstream(line.substr(field.size() + 1)) >> kib;
    return kib << 10;
  }
  return -1;
}

/// The peak growth of this process's resident memory while `body` runs; -1 if the kernel does not
/// say.
int64_t peak_growth(const std::function<void()>& body) {
  ::malloc_trim(0);
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;  // the peak is what is resident now
  if (!reset) return -1;
  const int64_t before = status_bytes("VmRSS");
  body();
  return status_bytes("VmHWM") - before;
}

/// A safetensors file with values for a Tower.
void write_weights(const std::string& path) {
  SafetensorsHeader header;
  for (int64_t i = 0; i < kLayers; ++i) {
    header.tensors.push_back({.name = absl::StrCat("layers.", i, ".weight"),
                              .dtype = at::kFloat,
                              .shape = {kWidth, kWidth},
                              .begin = i * kUnitBytes,
                              .end = (i + 1) * kUnitBytes});
  }
  std::ofstream file(path, std::ios::binary);
  file << *header.to_bytes();
  for (int64_t i = 0; i < kLayers; ++i) file << std::string(static_cast<size_t>(kUnitBytes), '\0');
}

/// Two ranks train one step; measures the growth of both during each of `bodies`.
void expect_growth(Strategy strategy,
                   const std::vector<std::function<void(Tower&, Engine&)>>& bodies,
                   const std::vector<bool>& is_small) {
  run_ranks(kWorld, [&](const std::shared_ptr<ProcessGroup>& group) {
    torch::manual_seed(1);
    auto model = std::make_shared<Tower>();
    Options options;
    options.strategy = strategy;
    const bool is_first = group->rank() == 0;
    ProcessGroup& world = *group;
    const auto engine = parallelize(*model, torch::optim::AdamWOptions(), options, group);
    model->forward(torch::ones({1, kWidth})).sum().backward();
    engine->step();
    for (size_t i = 0; i < bodies.size(); ++i) {
      const auto run = [&] {
        world.barrier("begin");
        bodies[i](*model, *engine);
        world.barrier("end");
      };
      world.barrier("before");
      if (!is_first) {
        run();
        continue;
      }
      const int64_t bytes = peak_growth(run);
      if (bytes < 0 || !kMemoryIsOurs) continue;
      EXPECT_EQ(bytes < kMaxBytes, is_small[i])
          << "body " << i << ": " << bytes << " bytes of " << kStateBytes;
    }
  });
}

class CheckpointMemory : public ::testing::TestWithParam<Strategy> {};
INSTANTIATE_TEST_SUITE_P(Strategies, CheckpointMemory,
                         ::testing::Values(Strategy::kZero3, Strategy::kZero1, Strategy::kDdp));

TEST_P(CheckpointMemory, IsAUnitAndSomeBlocks) {
  const TemporaryDirectory directory;
  const std::string weights = directory.path() + "/weights.safetensors";
  write_weights(weights);
  expect_growth(GetParam(),
                {[&](Tower&, Engine& engine) { save_checkpoint(engine, directory.path()); },
                 [&](Tower&, Engine& engine) { load_checkpoint(engine, directory.path()); },
                 [&](Tower& model, Engine& engine) { load_safetensors(model, engine, {weights}); },
                 // The control: a copy of a rank's part of the state is noticed.
                 [&](Tower&, Engine& engine) { (void)engine.state_dict(StateScope::kSharded); }},
                {true, true, true, false});
}

}  // namespace
}  // namespace tessera::internal::testing
