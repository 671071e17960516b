#include "tessera/bench/macro/optimizers/update.h"

#include <array>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/bench/macro/optimizers/streams.h"
#include "tessera/core/memory/private_memory.h"
#include "tessera/eight_bit_options.h"
#include "tessera/examples/program/program.h"
#include "tessera/flat_layout.h"
#include "tessera/lion_options.h"
#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"

namespace bench {
namespace {

using namespace torch::optim;
using tessera::LionOptions;

constexpr double kStart = 1.0;

at::Tensor memory_of(int64_t numel) {
  return tessera::internal::allocate_private(numel, at::kFloat);
}

at::Tensor values_of(int64_t numel) { return memory_of(numel).fill_(kStart); }

at::Tensor gradient_of(int64_t numel) {
  at::Generator generator = at::detail::createCPUGenerator(/*seed=*/1);
  return memory_of(numel).normal_(0.0, 1.0, generator);
}

double distance(const at::Tensor& values) {
  return values.detach().sub(kStart).abs().mean().item<double>();
}

/// Tessera's update, over a shard with one parameter.
class OwnUpdate final : public Update {
 public:
  OwnUpdate(const tessera::AlgorithmOptions& options, int64_t numel)
      : numel_(numel), table_({{"flat", torch::empty({numel}).set_requires_grad(true)}}) {
    const tessera::FlatLayout layout(at::kFloat, {numel}, 1);
    values_ = values_of(layout.numel());
    gradient_ = gradient_of(layout.numel());
    optimizer_ = tessera::internal::make_cpu_optimizer(
        table_, options, {0}, {{values_, layout.segments({0, layout.numel()})}});
  }

  void run() override {
    constexpr std::array<size_t, 1> kAll = {0};
    constexpr std::array<uint8_t, 1> kUsed = {1};
    optimizer_->update(0, gradient_, kAll, kUsed, 1.0);
  }
  double moved() const override { return distance(values_.narrow(0, 0, numel_)); }

 private:
  int64_t numel_;  // without padding
  tessera::ParameterTable table_;
  at::Tensor values_;
  at::Tensor gradient_;
  std::unique_ptr<tessera::internal::CpuOptimizer> optimizer_;
};

/// LibTorch's update.
class TorchUpdate final : public Update {
 public:
  using Make = std::function<std::unique_ptr<Optimizer>(std::vector<at::Tensor>)>;
  TorchUpdate(const Make& make, int64_t numel)
      : values_(values_of(numel).requires_grad_()), optimizer_(make({values_})) {
    values_.mutable_grad() = gradient_of(numel);
  }

  void run() override { optimizer_->step(); }
  double moved() const override { return distance(values_); }

 private:
  at::Tensor values_;
  std::unique_ptr<Optimizer> optimizer_;
};

/// Lion, written with LibTorch's operators.
class LionLoop final : public Optimizer {
 public:
  LionLoop(std::vector<at::Tensor> parameters, const LionOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<LionOptions>(options)) {}

  at::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const auto& options = static_cast<LionOptions&>(group.options());
      const auto [beta1, beta2] = options.betas();
      for (at::Tensor& parameter : group.params()) {
        const at::Tensor& gradient = parameter.grad();
        if (!momentum_.defined()) momentum_ = torch::zeros_like(parameter);
        parameter.mul_(1 - options.lr() * options.weight_decay());
        parameter.add_(momentum_.mul(beta1).add_(gradient, 1 - beta1).sign_(), -options.lr());
        momentum_.mul_(beta2).add_(gradient, 1 - beta2);
      }
    }
    return {};
  }

 private:
  at::Tensor momentum_;  // of the one parameter
};

/// Reads kArrays arrays and writes all but one of them, the least that an update of them does.
template <size_t kArrays>
class MemoryPass final : public Update {
 public:
  explicit MemoryPass(int64_t numel) : numel_(numel) {
    for (at::Tensor& array : arrays_) array = values_of(numel);
    arrays_.back() = memory_of(numel).fill_(1e-3);
    for (size_t i = 0; i < kArrays; ++i) data_[i] = arrays_[i].template mutable_data_ptr<float>();
  }

  void run() override { pass(data_, numel_); }
  double moved() const override { return distance(arrays_.front()); }

 private:
  int64_t numel_;
  std::array<at::Tensor, kArrays> arrays_;
  std::array<float*, kArrays> data_{};
};

/// An algorithm in Tessera and LibTorch, and the number of arrays that it reads.
struct Algorithm {
  std::string name;
  tessera::AlgorithmOptions options;
  TorchUpdate::Make make;
  int arrays;
  std::optional<tessera::AlgorithmOptions> in_eight_bits = std::nullopt;
};

template <typename Torch, typename Options>
Algorithm algorithm(const char* name, const Options& options, int arrays,
                    const std::optional<tessera::AlgorithmOptions>& in_eight_bits = {}) {
  return {.name = name,
          .options = options,
          .make = [options](std::vector<at::Tensor> parameters) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Torch>(std::move(parameters), options);
          },
          .arrays = arrays,
          .in_eight_bits = std::move(in_eight_bits)};
}

std::vector<Algorithm> all_algorithms() {
  return {algorithm<AdamW>("adamw", AdamWOptions(1e-3), 4, tessera::AdamW8bitOptions(1e-3)),
          algorithm<Adam>("adam", AdamOptions(1e-3), 4),
          algorithm<SGD>("sgd", SGDOptions(1e-3).momentum(0.9), 3),
          algorithm<LionLoop>("lion", LionOptions(1e-4).weight_decay(0.01), 3,
                              tessera::Lion8bitOptions(1e-4).weight_decay(0.01)),
          algorithm<Adagrad>("adagrad", AdagradOptions(1e-2), 3),
          algorithm<RMSprop>("rmsprop", RMSpropOptions(1e-3), 3)};
}

}  // namespace

void require_maker(const std::string& by) {
  if (by == "tessera" || by == "tessera8bit" || by == "libtorch" || by == "memory") return;
  throw program::UsageError("--by: got '" + by +
                            "', expected tessera, tessera8bit, libtorch or memory");
}

std::unique_ptr<Update> make_update(const std::string& by, const std::string& algorithm,
                                    int64_t numel) {
  require_maker(by);
  std::string names;
  const bool is_in_eight_bits = by == "tessera8bit";
  for (const Algorithm& known : all_algorithms()) {
    if (is_in_eight_bits && !known.in_eight_bits.has_value()) continue;
    names += (names.empty() ? "" : ", ") + known.name;
    if (known.name != algorithm) continue;
    if (is_in_eight_bits) return std::make_unique<OwnUpdate>(*known.in_eight_bits, numel);
    if (by == "tessera") return std::make_unique<OwnUpdate>(known.options, numel);
    if (by == "libtorch") return std::make_unique<TorchUpdate>(known.make, numel);
    if (known.arrays == 3) return std::make_unique<MemoryPass<3>>(numel);
    return std::make_unique<MemoryPass<4>>(numel);
  }
  throw program::UsageError("[bench] ALGORITHM: got '" + algorithm + "', expected one of " + names);
}

}  // namespace bench
