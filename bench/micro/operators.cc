#include "tessera/bench/micro/operators.h"

#include <array>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include "tessera/parallelize.h"

namespace tessera::internal::bench {
namespace {

enum class Beside : int64_t { kNothing, kDdp, kFree, kHeld };
constexpr std::array<const char*, 4> kBesides = {"no_engine", "ddp", "zero3", "zero3_held"};

enum class On : int64_t { kForeign, kParameter, kLayers };
constexpr std::array<const char*, 3> kOns = {"foreign", "parameter", "layers"};

constexpr int64_t kOperators = 100;  // per lap
constexpr int64_t kWidth = 16;

class Chain : public torch::nn::Module {
 public:
  Chain() : layers_(register_module("layers", torch::nn::ModuleList())) {
    for (int64_t i = 0; i < kOperators; ++i) layers_->push_back(torch::nn::Linear(kWidth, kWidth));
  }

  at::Tensor forward(at::Tensor x) {
    for (const auto& layer : *layers_) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }

  at::Tensor parameter() { return layers_[0]->as<torch::nn::Linear>()->weight; }

 private:
  torch::nn::ModuleList layers_;
};

std::unique_ptr<Engine> engine_beside(Beside beside, const std::shared_ptr<Chain>& model,
                                      ProcessGroup& group) {
  if (beside == Beside::kNothing) return nullptr;
  Options options;
  options.strategy = beside == Beside::kDdp ? Strategy::kDdp : Strategy::kZero3;
  // The Ranks object owns the group and outlives the engine.
  const std::shared_ptr<ProcessGroup> borrowed(&group, [](ProcessGroup*) {});
  return parallelize(model, torch::optim::AdamWOptions(), options, borrowed);
}

}  // namespace

void play_operators(const Scene& scene, ProcessGroup& group, Laps& laps) {
  const auto beside = static_cast<Beside>(scene.numbers[0]);
  const auto on = static_cast<On>(scene.numbers[1]);
  const auto model = std::make_shared<Chain>();
  const auto engine = engine_beside(beside, model, group);
  const auto scope = beside == Beside::kHeld ? engine->full_parameters() : nullptr;
  const torch::NoGradGuard no_grad;
  const at::Tensor x = torch::ones({kWidth, kWidth});
  at::Tensor out = torch::ones({kWidth, kWidth});
  const at::Tensor operand = on == On::kParameter ? model->parameter() : x.clone();
  const auto run = [&] {
    if (on == On::kLayers) {
      benchmark::DoNotOptimize(model->forward(x));
      return;
    }
    for (int64_t i = 0; i < kOperators; ++i) at::mul_out(out, operand, x);
  };
  if (group.rank() == 0) {  // operators are local; the peers only keep their shards
    run();
    while (laps.next()) run();
  }
  group.barrier("operators have run");
}

void register_operators(RankSets& rank_sets) {
  for (size_t on = 0; on < kOns.size(); ++on) {
    for (size_t beside = 0; beside < kBesides.size(); ++beside) {
      const std::string name = std::string("operators/") + kOns[on] + '/' + kBesides[beside];
      benchmark::RegisterBenchmark(name.c_str(), [=, &rank_sets](benchmark::State& state) {
        rank_sets.of(2, Waiting::kByCores)
            .play(
                {Scene::Kind::kOperators, {static_cast<int64_t>(beside), static_cast<int64_t>(on)}},
                state);
        state.counters["each"] = benchmark::Counter(
            static_cast<double>(kOperators),
            benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
      })->UseRealTime();
    }
  }
}

}  // namespace tessera::internal::bench
