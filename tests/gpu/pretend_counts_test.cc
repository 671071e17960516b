// What the engine adds to a plain step on a GPU: operations issued, and waits of the host, for a
// model with GPT-2's 148 parameters in some seven buckets. Only fake GPUs count.
//
// Per step at world size 1: a copy per gradient into its bucket; four kernels per bucket, which
// count non-finite elements, convert to fp32, add up squares and update; and 10 operations per
// step.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/parallelize.h"
#include "tessera/tests/gpu/gpu_worlds.h"
#include "tessera/tests/support/gpu_for_tests.h"
#include "tessera/tests/support/rank_threads.h"

namespace tessera::internal::testing {
namespace {

namespace nn = torch::nn;

constexpr int kLayers = 12;
constexpr int kWords = 32;
constexpr int kPlaces = 4;

/// Two embeddings, 12 blocks of 12 parameters, and a norm: 148 parameters. Its forward has no
/// attention, since only the number and the order of gradients count.
struct Gpt2Plan : nn::Module {
  explicit Gpt2Plan(int64_t width)
      : word(register_module("word", nn::Embedding(kWords, width))),
        place(register_module("place", nn::Embedding(kPlaces, width))),
        norm(register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})))) {
    for (int i = 0; i < kLayers; ++i) {
      const std::string name = std::to_string(i);
      for (const char* half : {"a", "b"}) {
        norms.push_back(
            register_module("norm" + name + half, nn::LayerNorm(nn::LayerNormOptions({width}))));
      }
      const int64_t widths[] = {width, 3 * width, width, 4 * width, width};
      for (int j = 0; j < 4; ++j) {
        linears.push_back(register_module("linear" + name + std::to_string(j),
                                          nn::Linear(widths[j], widths[j + 1])));
      }
    }
  }
  at::Tensor forward(const at::Tensor& words) {
    at::Tensor x = word(words) + place(at::arange(words.size(-1), words.options()));
    for (int i = 0; i < kLayers; ++i) {
      const auto linear = [&](int j, const at::Tensor& y) { return linears[4 * i + j](y); };
      x = x + linear(1, linear(0, norms[2 * i](x)));
      x = x + linear(3, at::gelu(linear(2, norms[2 * i + 1](x))));
    }
    return norm(x);
  }

  nn::Embedding word, place;
  std::vector<nn::LayerNorm> norms;
  std::vector<nn::Linear> linears;
  nn::LayerNorm norm;
};

/// Counts since its construction.
class Counts {
 public:
  explicit Counts(at::Device device) : device_(static_cast<int>(device.index())) {}
  int64_t operations() const { return now() - operations_; }
  int64_t host_waits() const { return fake_gpu()->host_syncs(device_) - host_waits_; }

 private:
  int64_t now() const { return fake_gpu()->operators(device_) + fake_gpu()->launches(device_); }

  const int device_;
  const int64_t operations_ = now();
  const int64_t host_waits_ = fake_gpu()->host_syncs(device_);
};

struct Added {
  int64_t operations = 0;
  int64_t host_waits = 0;
  int64_t buckets = 0;
  int64_t gaps = 0;  // places in buckets that hold no parameter
};

int64_t gaps_in(const PlannedUnit& unit) {
  int64_t gaps = 0, end_of_last = 0;
  for (size_t position = 0; position < unit.parameters.size(); ++position) {
    const auto range = unit.layout.parameter_range(position);
    if (range.begin > end_of_last) ++gaps;
    end_of_last = range.end();
  }
  return gaps + (unit.layout.numel() > end_of_last ? 1 : 0);
}

/// What a step of an engine for one rank adds to forward and backward without an engine.
Added added_by_step(int64_t width, int64_t bucket_bytes) {
  Added added;
  const Decorate on_gpu = alone();
  run_ranks(1, [&](std::shared_ptr<ProcessGroup> given) {
    const auto world = on_gpu(std::move(given));
    const auto model = std::make_shared<Gpt2Plan>(width);
    ASSERT_EQ(model->parameters().size(), 148);
    model->to(world->device(), at::kBFloat16);
    const at::Tensor words =
        at::arange(2 * kPlaces, at::TensorOptions(world->device()).dtype(at::kLong))
            .view({2, kPlaces});
    const auto backward = [&] { model->forward(words).sum().backward(); };
    // A second backward would add to gradients.
    const auto drop_gradients = [&] {
      for (at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
    };
    backward();
    drop_gradients();
    const Counts plain(world->device());
    backward();
    added.operations -= plain.operations();
    added.host_waits -= plain.host_waits();
    drop_gradients();

    Options options;
    options.bucket_bytes = {bucket_bytes};
    const auto engine = parallelize(model, torch::optim::AdamWOptions(1e-3), options, world);
    added.buckets = static_cast<int64_t>(engine->units().size());
    for (const PlannedUnit& unit : engine->units()) added.gaps += gaps_in(unit);
    for (int step = 0; step < 3; ++step) {
      backward();
      engine->step();
    }
    const Counts counts(world->device());
    backward();
    engine->step();
    added.operations += counts.operations();
    added.host_waits += counts.host_waits();
  });
  return added;
}

TEST(PretendCounts, OfAStepOfGpt2Alone) {
  const Added added = added_by_step(128, 700000);
  EXPECT_GE(added.buckets, 6);
  EXPECT_EQ(added.gaps, 0);
  EXPECT_EQ(added.operations, 148 + 4 * added.buckets + 10);
  EXPECT_EQ(added.host_waits, 1);
}

// Widths that leave gaps in buckets: each is filled with zeros in each step.
TEST(PretendCounts, OfAStepWithPadding) {
  const Added added = added_by_step(100, 400000);
  EXPECT_GE(added.gaps, 100);
  EXPECT_EQ(added.operations, 148 + 4 * added.buckets + 10 + added.gaps);
  EXPECT_EQ(added.host_waits, 1);
}

}  // namespace
}  // namespace tessera::internal::testing
