#include "tessera/whole_tensor.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/optimizer_plan.h"
#include "tessera/parameter_table.h"
#include "tessera/tests/support/factored.h"
#include "tessera/tests/support/own_optimizer.h"
#include "tessera/torch_elementwise.h"

// What whole_tensor() accepts and refuses.

namespace tessera::internal::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// "" or why parallelize refuses the plan for a matrix.
std::string whole_refusal(const OptimizerPlan& plan) {
  const auto assigned = plan.assign(
      ParameterTable(std::vector<NamedTensor>{{"weight", torch::zeros({2, 3}).requires_grad_()}}));
  return assigned.ok() ? "" : std::string(assigned.status().message());
}

template <typename Rule>
std::string whole_refusal_of() {
  return whole_refusal(whole_tensor<Own<Rule>>(OwnOptions()));
}

/// Bounds the norm of all gradients itself.
struct NormOfAll {
  static constexpr const char* kName = "NormOfAll";
  static void begin(const std::vector<at::Tensor>& parameters, const OwnOptions&) {
    at::Tensor sum = torch::zeros({}, at::kDouble);
    for (const at::Tensor& parameter : parameters) {
      sum += parameter.grad().to(at::kDouble).square().sum();
    }
    for (const at::Tensor& parameter : parameters) {
      parameter.grad().mul_(1 / (1 + std::sqrt(sum.item<double>())));
    }
  }
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.add_(gradient, -options.lr);
  }
};

/// Has a state of other sizes than its parameter.
struct RowsOf {
  static constexpr const char* kName = "Rows";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState& state,
                     const OwnOptions& options) {
    if (!state.mean.defined()) state.mean = torch::zeros({gradient.size(0)}, gradient.options());
    state.mean += gradient.view({gradient.size(0), -1}).square().mean(1);
    parameter.add_(gradient / (1 + state.mean.mean()), -options.lr);
  }
};

struct MatricesOnly {
  static constexpr const char* kName = "MatricesOnly";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.add_(gradient.mm(gradient.t()).mm(gradient), -options.lr);
  }
};

struct Draws {
  static constexpr const char* kName = "Draws";
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    parameter.add_(gradient * torch::rand({}), -options.lr);
  }
};

/// Beside whose first updates another thread draws.
struct Beside {
  static constexpr const char* kName = "Beside";
  static inline std::atomic<int> updates = 0;
  static void update(const at::Tensor& parameter, const at::Tensor& gradient, OwnState&,
                     const OwnOptions& options) {
    if (updates++ < 100) std::thread([] { torch::rand({}); }).join();
    parameter.add_(gradient, -options.lr);
  }
};

TEST(WholeTensorProbe, DoesNotTakeWhatOtherThreadsDrawForTheOptimizers) {
  EXPECT_EQ(whole_refusal_of<Beside>(), "");
  EXPECT_GT(Beside::updates, 100);
}

TEST(WholeTensorProbe, AcceptsWhatDependsOnOneParameter) {
  EXPECT_EQ(whole_refusal(whole_tensor<Factored>(FactoredOptions())), "");
  EXPECT_EQ(whole_refusal_of<NormOfParameter>(), "");
  EXPECT_EQ(whole_refusal_of<Belief>(), "");
  EXPECT_EQ(whole_refusal(whole_tensor<torch::optim::AdamW>(torch::optim::AdamWOptions(0.02))), "");
}

TEST(WholeTensorProbe, NamesWhatDoesNot) {
  EXPECT_THAT(whole_refusal_of<NormOfAll>(),
              AllOf(HasSubstr("[optim] defaults: NormOfAll: got an update that depends on other "
                              "parameters, expected one that depends on one parameter"),
                    HasSubstr("Options::max_grad_norm")));
  EXPECT_THAT(whole_refusal_of<RowsOf>(),
              HasSubstr("Rows: state 'mean': got sizes [16] for a parameter of [16, 12], expected "
                        "[16, 12]; say its sizes by StateTensor::sizes"));
  EXPECT_THAT(whole_refusal_of<Draws>(), HasSubstr("Draws: got a step that draws random numbers"));
  EXPECT_THAT(whole_refusal_of<MatricesOnly>(),
              AllOf(HasSubstr("MatricesOnly: got an exception in a run of three steps"),
                    HasSubstr("say by `dimensions` of its form")));
  EXPECT_EQ(whole_refusal(whole_tensor<Own<NormOfAll>>(OwnOptions(), OptimizerProbe::kSkip)), "");
}

/// As it says.
struct Matrices : Own<MatricesOnly> {
  using Own::Own;
};

// docs/optimizers.md shows its traits and the call, and links to the rest of it here.
struct AdafactorOptions : torch::optim::OptimizerCloneableOptions<AdafactorOptions> {
  AdafactorOptions(double lr = 1e-2) : lr(lr) {}
  double lr;
  double get_lr() const override { return lr; }  // for schedulers
  void set_lr(const double rate) override { lr = rate; }
};

struct AdafactorState : torch::optim::OptimizerCloneableParamState<AdafactorState> {
  torch::Tensor rows, cols;
  int64_t updates = 0;
};

class Adafactor : public torch::optim::Optimizer {
 public:
  Adafactor(std::vector<torch::Tensor> parameters, AdafactorOptions options)
      : Optimizer(std::move(parameters), std::make_unique<AdafactorOptions>(options)) {}

  torch::Tensor step(LossClosure = nullptr) override {
    torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      const double lr = group.options().get_lr();
      for (torch::Tensor& matrix : group.params()) {
        if (!matrix.grad().defined()) continue;
        auto& entry = state()[matrix.unsafeGetTensorImpl()];
        if (entry == nullptr) entry = std::make_unique<AdafactorState>();
        auto& own = static_cast<AdafactorState&>(*entry);
        const torch::Tensor squares = matrix.grad().square() + 1e-30;
        if (!own.rows.defined()) own.rows = torch::zeros({matrix.size(0)}, matrix.options());
        if (!own.cols.defined()) own.cols = torch::zeros({matrix.size(1)}, matrix.options());
        const double weight = std::pow(static_cast<double>(++own.updates), -0.8);
        own.rows.lerp_(squares.mean(1), weight);
        own.cols.lerp_(squares.mean(0), weight);
        const torch::Tensor second = own.rows.outer(own.cols) / own.rows.mean();
        const torch::Tensor update = matrix.grad() / second.sqrt();
        matrix.add_(update / update.square().mean().sqrt().clamp_min(1.0), -lr);
      }
    }
    return {};
  }
};

}  // namespace
}  // namespace tessera::internal::testing

template <>
struct tessera::WholeTensorTraits<tessera::internal::testing::Adafactor> {
  using AdafactorOptions = internal::testing::AdafactorOptions;
  using AdafactorState = internal::testing::AdafactorState;
  using Sizes = std::vector<int64_t>;
  static StateSizes rows(const AdafactorOptions&, at::IntArrayRef of) { return Sizes{of[0]}; }
  static StateSizes cols(const AdafactorOptions&, at::IntArrayRef of) { return Sizes{of[1]}; }
  static WholeTensorForm<AdafactorOptions, AdafactorState> form() {
    return {
        .name = "Adafactor",
        .states = {{"rows", &AdafactorState::rows, &rows}, {"cols", &AdafactorState::cols, &cols}},
        .step = &AdafactorState::updates,
        .dimensions = 2};
  }
};

namespace tessera {

template <>
struct WholeTensorTraits<internal::testing::Matrices> {
  static WholeTensorForm<internal::testing::OwnOptions, internal::testing::OwnState> form() {
    return {.name = "Matrices", .dimensions = 2};
  }
};

/// Keeps rows that its form does not name.
struct Secretive : internal::testing::Factored {
  using Factored::Factored;
};
template <>
struct WholeTensorTraits<Secretive> {
  using State = internal::testing::FactoredState;
  using Options = internal::testing::FactoredOptions;
  static WholeTensorForm<Options, State> form() {
    auto form = WholeTensorTraits<internal::testing::Factored>::form();
    form.name = "Secretive";
    form.states.erase(form.states.begin() + 1);
    return form;
  }
};

/// With sizes that are none.
struct Misfit : internal::testing::Factored {
  using Factored::Factored;
};
template <>
struct WholeTensorTraits<Misfit> {
  using State = internal::testing::FactoredState;
  using Options = internal::testing::FactoredOptions;
  static WholeTensorForm<Options, State> form() {
    auto form = WholeTensorTraits<internal::testing::Factored>::form();
    form.name = "Misfit";
    form.states[1].sizes = [](const Options&, at::IntArrayRef of) {
      return of.size() < 2 ? StateSizes() : std::vector<int64_t>{of[0] == 2 ? -1 : of[0]};
    };
    return form;
  }
};
template <>
struct ElementwiseTraits<internal::testing::Factored>
    : WholeTensorTraits<internal::testing::Factored> {};

}  // namespace tessera

namespace tessera::internal::testing {
namespace {

TEST(WholeTensorForm, SaysForWhichParametersAndOfWhichSizes) {
  const OptimizerPlan matrices = whole_tensor<Matrices>(OwnOptions());
  EXPECT_EQ(whole_refusal(matrices), "");
  EXPECT_EQ(whole_refusal(whole_tensor<Adafactor>(AdafactorOptions())), "");
  const auto vector = matrices.assign(
      ParameterTable(std::vector<NamedTensor>{{"bias", torch::zeros({3}).requires_grad_()}}));
  EXPECT_THAT(std::string(vector.status().message()),
              HasSubstr("got parameter 'bias' with dim() == 1, expected dim() == 2, which Matrices "
                        "needs"));
  EXPECT_THAT(whole_refusal(whole_tensor<Misfit>(FactoredOptions())),
              HasSubstr("[optim] defaults: parameter 'weight': Misfit: state 'rows': got sizes "
                        "[-1] for a parameter of [2, 3], expected none below 0"));
  EXPECT_THAT(whole_refusal(whole_tensor<Secretive>(FactoredOptions())),
              HasSubstr("Secretive: got an update that depends on something that its "
                        "WholeTensorTraits do not name"));
  EXPECT_THAT(whole_refusal(elementwise<Factored>(FactoredOptions())),
              HasSubstr("Factored: state 'rows': got sizes of its own, expected a value for each "
                        "element; hand the optimizer to whole_tensor()"));
}

}  // namespace
}  // namespace tessera::internal::testing
