#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <benchmark/benchmark.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/flat_layout.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"

namespace tessera::internal::bench {
namespace {

constexpr int64_t kSmallBytes = int64_t{128} << 10;  // with gradient and moments 512 KiB: in L2
constexpr int64_t kLargeBytes = int64_t{64} << 20;   // larger than every cache

at::Tensor filled(int64_t numel, double value) {
  return allocate_private(numel, at::kFloat).fill_(value);
}

void report(benchmark::State& state, int64_t numel) {
  state.counters["per_element"] =
      benchmark::Counter(static_cast<double>(numel), benchmark::Counter::kIsIterationInvariantRate |
                                                         benchmark::Counter::kInvert);
  // Values, gradient and two moments are read; all except the gradient are written.
  constexpr int64_t kTraffic = 7 * sizeof(float);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * numel * kTraffic);
}

/// Times Tessera's AdamW over one shard, by bytes of values and elements per parameter (`segment`).
/// With large segments it should be as fast as PyTorch's fused AdamW; small segments show the cost
/// of each parameter.
void flat_adamw(benchmark::State& state) {
  const int64_t numel = state.range(0) / static_cast<int64_t>(sizeof(float));
  const int64_t segment = state.range(1);
  const auto parameters = static_cast<size_t>(numel / segment);
  std::vector<NamedTensor> named;
  for (size_t i = 0; i < parameters; ++i) {
    named.push_back({std::to_string(i), torch::empty({segment}).set_requires_grad(true)});
  }
  const ParameterTable table(std::move(named));
  const OptimizerPlan plan((torch::optim::AdamWOptions()));
  const FlatLayout layout(at::kFloat, std::vector<int64_t>(parameters, segment), 1);
  const auto optimizer =
      make_cpu_optimizer(table, plan, std::vector<size_t>(parameters, 0),
                         {{filled(layout.numel(), 1), layout.segments({0, layout.numel()})}});
  const at::Tensor gradient = filled(layout.numel(), 0.5);
  std::vector<size_t> all(parameters);
  std::iota(all.begin(), all.end(), size_t{0});
  const std::vector<uint8_t> used(parameters, 1);
  for (auto _ : state) optimizer->update(0, gradient, all, used, 1.0);
  report(state, numel);
}

/// at::_fused_adamw_ over tensors of the same sizes.
void torch_fused_adamw(benchmark::State& state) {
  const int64_t numel = state.range(0) / static_cast<int64_t>(sizeof(float));
  const int64_t segment = state.range(1);
  const auto parameters = static_cast<size_t>(numel / segment);
  const auto tensors = [&](double value) {
    std::vector<at::Tensor> list;
    for (size_t i = 0; i < parameters; ++i) list.push_back(filled(segment, value));
    return list;
  };
  const std::vector<at::Tensor> values = tensors(1);
  const std::vector<at::Tensor> gradients = tensors(0.5);
  const std::vector<at::Tensor> first = tensors(0);
  const std::vector<at::Tensor> second = tensors(0);
  std::vector<at::Tensor> steps;
  for (size_t i = 0; i < parameters; ++i) steps.push_back(torch::ones({}));
  for (auto _ : state) {
    at::_fused_adamw_(values, gradients, first, second, {}, steps, /*lr=*/1e-3, /*beta1=*/0.9,
                      /*beta2=*/0.999, /*weight_decay=*/1e-2, /*eps=*/1e-8, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  report(state, numel);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"bytes", "segment"});
  for (const int64_t segment : {64, 1024, 32768}) benchmark->Args({kSmallBytes, segment});
  for (const int64_t segment : {1024, 65536, 16777216}) benchmark->Args({kLargeBytes, segment});
}

BENCHMARK(flat_adamw)->Apply(sizes);
BENCHMARK(torch_fused_adamw)->Apply(sizes);

}  // namespace
}  // namespace tessera::internal::bench
