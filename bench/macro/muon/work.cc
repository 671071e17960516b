#include "tessera/bench/macro/muon/work.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/core/memory/private_memory.h"
#include "tessera/examples/program/program.h"
#include "tessera/optim/algorithms/newton_schulz.h"
#include "tessera/tessera.h"

namespace bench {
namespace {

constexpr int kBlocks = 2;

/// The matrices of a GPT block: attention's projections and the feed-forward layers.
std::vector<std::array<int64_t, 2>> matrix_sizes(int64_t width) {
  return {{3 * width, width}, {width, width}, {4 * width, width}, {width, 4 * width}};
}

class Matrices : public torch::nn::Module {
 public:
  explicit Matrices(int64_t width) {
    constexpr std::array<const char*, 4> kNames = {"qkv", "out", "up", "down"};
    for (int block = 0; block < kBlocks; ++block) {
      const auto sizes = matrix_sizes(width);
      for (size_t i = 0; i < sizes.size(); ++i) {
        const std::string name = "block" + std::to_string(block) + "_" + kNames[i];
        register_parameter(name, torch::randn(sizes[i]) * 0.02);
      }
    }
  }
};

class EngineUpdate final : public Work {
 public:
  EngineUpdate(tessera::Strategy strategy, int64_t width)
      : world_(tessera::init_process_group()), model_(std::make_shared<Matrices>(width)) {
    torch::manual_seed(1);  // the same gradients on all ranks
    for (const auto& parameter : model_->named_parameters()) {
      gradients_.push_back({parameter.key(), torch::randn_like(parameter.value())});
    }
    engine_ = tessera::parallelize(model_, tessera::MuonOptions(1e-3),
                                   {.strategy = strategy, .trace = true}, world_);
    begun_ = values();
  }

  Times run() override {
    engine_->accumulate(gradients_);
    world_->barrier("update");
    engine_->step();
    Times times;
    const std::vector<tessera::Trace::Span> spans = tessera::trace_of(*engine_)->spans();
    for (; seen_ < spans.size(); ++seen_) {
      const tessera::Trace::Span& span = spans[seen_];
      if (span.track != tessera::TraceTrack::kOptimizer) continue;
      const auto us = static_cast<double>(span.end_ns - span.begin_ns) * 1e-3;
      (span.name == "update" ? times.us : times.transforms_us) += us;
    }
    return times;
  }
  double moved() const override {
    const std::vector<at::Tensor> now = values();
    double sum = 0;
    int64_t numel = 0;
    for (size_t i = 0; i < now.size(); ++i) {
      sum += (now[i] - begun_[i]).abs().sum().item<double>();
      numel += now[i].numel();
    }
    return sum / static_cast<double>(numel);
  }

 private:
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> all;
    for (const at::Tensor& parameter : model_->parameters()) {
      all.push_back(parameter.detach().clone());
    }
    return all;
  }

  std::shared_ptr<tessera::ProcessGroup> world_;
  std::shared_ptr<Matrices> model_;
  std::vector<tessera::NamedTensor> gradients_;
  std::unique_ptr<tessera::Engine> engine_;
  std::vector<at::Tensor> begun_;
  size_t seen_ = 0;  // spans of the trace that earlier runs have read
};

template <typename Body>
Work::Times timed(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  return {.us = took.count(), .transforms_us = took.count()};
}

class Iterations final : public Work {
 public:
  explicit Iterations(int64_t width) {
    const tessera::MuonOptions options;
    iteration_ = {.coefficients = options.ns_coefficients(),
                  .steps = options.ns_steps(),
                  .eps = options.eps(),
                  .is_in_bfloat16 = false};
    int64_t scratch_numel = 0;
    for (int block = 0; block < kBlocks; ++block) {
      for (const auto& [rows, cols] : matrix_sizes(width)) {
        directions_.push_back(torch::randn({rows, cols}));
        scratch_numel =
            std::max(scratch_numel, tessera::internal::NewtonSchulz::scratch_numel(rows, cols));
      }
    }
    scratch_ = tessera::internal::allocate_private(scratch_numel, at::kFloat);
  }

  // Transforms the results of the last run again. Nearly orthogonal matrices stay nearly
  // orthogonal.
  Times run() override {
    return timed([&] {
      for (const at::Tensor& direction : directions_) iteration_.apply(direction, scratch_);
    });
  }

 private:
  tessera::internal::NewtonSchulz iteration_;
  std::vector<at::Tensor> directions_;
  at::Tensor scratch_;
};

class Products final : public Work {
 public:
  explicit Products(int64_t width)
      : left_(torch::randn({2 * width, 2 * width})),
        right_(torch::randn_like(left_)),
        product_(torch::empty_like(left_)) {}

  Times run() override {
    constexpr int kProducts = 16;
    return timed([&] {
      for (int i = 0; i < kProducts; ++i) at::mm_out(product_, left_, right_);
    });
  }

 private:
  at::Tensor left_, right_, product_;
};

}  // namespace

void require_kind_of_work(const std::string& by) {
  if (by == "tessera" || by == "iterations" || by == "products") return;
  throw program::UsageError("--by: got '" + by + "', expected tessera, iterations or products");
}

std::unique_ptr<Work> make_work(const std::string& by, tessera::Strategy strategy, int64_t width) {
  require_kind_of_work(by);
  if (by == "tessera") return std::make_unique<EngineUpdate>(strategy, width);
  if (by == "iterations") return std::make_unique<Iterations>(width);
  return std::make_unique<Products>(width);
}

}  // namespace bench
