#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <benchmark/benchmark.h>
#include <torch/types.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/core/numbers/exact_sum.h"
#include "tessera/core/reduce/gradient_buffer.h"
#include "tessera/core/step/grad_norm.h"
#include "tessera/parameter_table.h"
#include "tessera/unit_plan.h"

namespace tessera::internal::bench {
namespace {

constexpr int64_t kInCache = int64_t{128} << 10;     // fits into L2
constexpr int64_t kBeyondCache = int64_t{64} << 20;  // larger than every cache

void report(benchmark::State& state, int64_t numel, at::ScalarType dtype) {
  state.counters["per_element"] =
      benchmark::Counter(static_cast<double>(numel), benchmark::Counter::kIsIterationInvariantRate |
                                                         benchmark::Counter::kInvert);
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * numel *
                          static_cast<int64_t>(c10::elementSize(dtype)));
}

/// Times the sum of squares of a gradient for the global norm. Arguments: bytes; dtype (6 is
/// float32, 15 is bfloat16).
void squares(benchmark::State& state) {
  const auto dtype = static_cast<at::ScalarType>(state.range(1));
  const int64_t numel = state.range(0) / static_cast<int64_t>(c10::elementSize(dtype));
  const at::Tensor gradient = allocate_private(numel, dtype).fill_(0.37);
  const Segment segment{0, 0, 0, numel};
  ExactSum sum;
  for (auto _ : state) add_squares(gradient, segment, sum);
  benchmark::DoNotOptimize(sum.value());
  report(state, numel, dtype);
}
BENCHMARK(squares)
    ->ArgNames({"bytes", "dtype"})
    ->ArgsProduct({{kInCache, kBeyondCache},
                   {static_cast<int64_t>(at::kFloat), static_cast<int64_t>(at::kBFloat16)}});

/// Times copying a unit's gradients from autograd into the buffer that is reduced, with a check for
/// NaN and infinity. Arguments: bytes of the unit; its number of parameters.
void gradient_buffer(benchmark::State& state) {
  const int64_t numel = state.range(0) / static_cast<int64_t>(sizeof(float));
  const int64_t parameters = state.range(1);
  std::vector<NamedTensor> named;
  std::vector<at::Tensor> gradients;
  UnitPlan::Membership unit{"unit", {}};
  for (int64_t i = 0; i < parameters; ++i) {
    named.push_back({std::to_string(i), torch::empty({numel / parameters}).requires_grad_()});
    gradients.push_back(torch::ones({numel / parameters}));
    unit.parameters.push_back(static_cast<size_t>(i));
  }
  const ParameterTable table(std::move(named));
  const UnitPlan plan(table, {unit}, /*slices=*/2);
  GradientBuffer gradient_buffer(table, plan[0]);
  at::Tensor buffer = allocate_private(plan[0].layout.numel(), at::kFloat).zero_();
  for (auto _ : state) {
    gradient_buffer.open(std::move(buffer));
    int64_t non_finite = 0;
    for (size_t i = 0; i < gradients.size(); ++i)
      non_finite += gradient_buffer.receive(i, gradients[i]);
    benchmark::DoNotOptimize(non_finite);
    buffer = gradient_buffer.close();
  }
  report(state, numel, at::kFloat);
}
BENCHMARK(gradient_buffer)
    ->ArgNames({"bytes", "parameters"})
    ->Args({kInCache, 1})
    ->Args({kInCache, 16})
    ->Args({kInCache, 256})
    ->Args({kBeyondCache, 16});

}  // namespace
}  // namespace tessera::internal::bench
