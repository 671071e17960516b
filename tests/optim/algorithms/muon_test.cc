#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/muon_options.h"
#include "tessera/optim/algorithms/algorithms.h"
#include "tessera/optim/algorithms/muon.h"
#include "tessera/optim/algorithms/newton_schulz.h"
#include "tessera/tests/optim/sharded_model.h"
#include "tessera/tests/support/plain_muon.h"
#include "tessera/tests/support/same_bits.h"

// Muon has the bits of torch.optim.Muon's operators, however parameters are split.

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Tall, wide and square matrices, single rows and columns, other memory orders, and one without
/// elements.
std::vector<NamedTensor> muon_matrices(at::ScalarType dtype) {
  torch::manual_seed(5);
  const auto random = [&](int64_t rows, int64_t cols) {
    return torch::randn({rows, cols}, torch::kDouble).to(dtype);
  };
  const std::vector<std::pair<std::string, at::Tensor>> tensors = {
      {"tall", random(37, 11)},      {"wide", random(11, 37)}, {"square", random(16, 16)},
      {"turned", random(7, 13).t()}, {"row", random(1, 9)},    {"column", random(9, 1)},
      {"one", random(1, 1)},         {"nothing", random(0, 3)}};
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) {
    named.push_back({name, tensor.clone().requires_grad_(true)});
  }
  return named;
}

/// Gradients, for the square matrix in every second step only.
std::vector<at::Tensor> muon_gradients(const std::vector<NamedTensor>& parameters, int step) {
  torch::manual_seed(200 + step);
  std::vector<at::Tensor> gradients;
  for (const auto& [name, tensor] : parameters) {
    at::Tensor gradient = torch::empty_like(tensor, torch::kDouble);
    gradient = gradient.normal_().to(tensor.scalar_type());
    gradients.push_back(name == "square" && step % 2 == 1 ? at::Tensor() : gradient);
  }
  return gradients;
}

/// For one slice, which works without the others.
void let_work_alone(ShardedModel& model) {
  model.optimizer(0).whole_tensors()->reserve(/*scratch_bytes=*/1 << 16, /*whole_bytes=*/1 << 13);
}

/// Several slices: directions are put together, and the first slice's optimizer transforms them
/// all.
class CutMuon {
 public:
  CutMuon(std::vector<NamedTensor> parameters, const OptimizerPlan& plan, int slices)
      : model_(std::move(parameters), plan, slices), slices_(slices) {
    std::vector<size_t> units;
    for (size_t i = 0; i < model_.table().size(); ++i) units.push_back(i);
    const at::ScalarType dtype = model_.flat().scalar_type();
    for (size_t i = 0; i < model_.table().size(); ++i) {
      directions_.push_back(torch::zeros({model_.table()[i].tensor.numel()}, dtype));
    }
    const UnitPlan plan_of_units(model_.table(), {{"unit", units}}, slices);
    const FlatLayout& layout = plan_of_units[0].layout;
    for (int slice = 0; slice < slices; ++slice) {
      const std::vector<Segment> segments = layout.segments(layout.slice_range(slice));
      WholeTensors& whole = *model_.optimizer(slice).whole_tensors();
      whole.reserve(/*scratch_bytes=*/1 << 16, /*whole_bytes=*/0);
      for (size_t i = 0; i < segments.size(); ++i) {
        straddles_ = straddles_ || segments[i].parameter_offset > 0;
        whole.place(0, i,
                    directions_[segments[i].parameter].narrow(0, segments[i].parameter_offset,
                                                              segments[i].numel));
      }
    }
  }

  void update(const std::vector<at::Tensor>& gradients) {
    std::vector<uint8_t> used;
    for (const at::Tensor& gradient : gradients) used.push_back(gradient.defined() ? 1 : 0);
    model_.update(gradients);
    const WholeTensors& owner = *model_.optimizer(0).whole_tensors();
    for (const size_t parameter : owner.parameters()) {
      if (used[parameter] != 0) owner.transform(parameter, directions_[parameter]);
    }
    for (int slice = 0; slice < slices_; ++slice) {
      model_.optimizer(slice).whole_tensors()->apply(0, used);
    }
  }

  const ParameterTable& table() const { return model_.table(); }
  bool straddles() const { return straddles_; }

 private:
  ShardedModel model_;
  std::vector<at::Tensor> directions_;
  int slices_;
  bool straddles_ = false;
};

/// The parameters that differ in any bit, after some steps, from a plain loop with
/// `reference_options`.
std::set<std::string> differing_from_plain(const MuonOptions& options,
                                           const MuonOptions& reference_options,
                                           at::ScalarType dtype, int slices) {
  const std::vector<NamedTensor> reference = muon_matrices(dtype);
  std::vector<at::Tensor> trained;
  for (const NamedTensor& parameter : reference) {
    if (parameter.tensor.numel() > 0) trained.push_back(parameter.tensor);
  }
  testing::PlainMuon plain(trained, reference_options);
  ShardedModel alone(muon_matrices(dtype), options, 1);
  let_work_alone(alone);
  CutMuon cut(muon_matrices(dtype), options, slices);
  EXPECT_TRUE(cut.straddles());
  for (int step = 0; step < 4; ++step) {
    const std::vector<at::Tensor> gradients = muon_gradients(reference, step);
    for (size_t i = 0; i < reference.size(); ++i) {
      reference[i].tensor.mutable_grad() = gradients[i];
    }
    plain.step();
    alone.update(gradients);
    cut.update(gradients);
  }
  std::set<std::string> names;
  for (size_t i = 0; i < reference.size(); ++i) {
    for (const ParameterTable* table : {&alone.table(), &cut.table()}) {
      if (!testing::have_same_bits((*table)[i].tensor, reference[i].tensor)) {
        names.insert(reference[i].name);
      }
    }
  }
  return names;
}

std::vector<MuonOptions> muon_variants() {
  return {MuonOptions(0.02), MuonOptions(0.02).nesterov(false).momentum(0.3).weight_decay(0),
          MuonOptions(0.02).adjust_lr(MuonOptions::AdjustLr::kMatchRmsAdamW),
          MuonOptions(0.02).ns_steps(2).ns_coefficients({2, -1.5, 0.5}),
          MuonOptions(0.02).ns_in_bfloat16(true)};
}

TEST(Muon, HasTheBitsOfTorchsOperatorsHoweverItIsCut) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const int slices : {2, 3}) {
      int variant = 0;
      for (const MuonOptions& options : muon_variants()) {
        EXPECT_THAT(differing_from_plain(options, options, dtype, slices), ElementsAre())
            << dtype << " in " << slices << ", variant " << variant++;
      }
    }
  }
}

TEST(MuonNegativeControl, EveryOptionMatters) {
  const auto differ = [](const MuonOptions& from) {
    return differing_from_plain(MuonOptions(0.02), from, at::kFloat, 3).size();
  };
  EXPECT_EQ(differ(MuonOptions(0.02)), 0);
  EXPECT_GT(differ(MuonOptions(0.02001)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).weight_decay(0.2)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).momentum(0.9)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).nesterov(false)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).ns_steps(4)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).ns_coefficients({3.4445, -4.7750, 2.03})), 0);
  EXPECT_GT(differ(MuonOptions(0.02).eps(1e3)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).adjust_lr(MuonOptions::AdjustLr::kMatchRmsAdamW)), 0);
  EXPECT_GT(differ(MuonOptions(0.02).ns_in_bfloat16(true)), 0);
}

TEST(Muon, AppliesTheGradientScaleFirst) {
  const std::vector<NamedTensor> names = muon_matrices(at::kFloat);
  ShardedModel scaled(muon_matrices(at::kFloat), MuonOptions(0.02), 1);
  ShardedModel whole(muon_matrices(at::kFloat), MuonOptions(0.02), 1);
  let_work_alone(scaled);
  let_work_alone(whole);
  for (int step = 0; step < 2; ++step) {
    std::vector<at::Tensor> gradients = muon_gradients(names, step);
    whole.update(gradients);
    for (at::Tensor& gradient : gradients) {
      if (gradient.defined()) gradient.mul_(4);
    }
    scaled.update(gradients, 0.25);
  }
  EXPECT_TRUE(testing::have_same_bits(scaled.flat(), whole.flat()));
}

TEST(NewtonSchulzIteration, BringsSingularValuesNearOne) {
  torch::manual_seed(3);
  const at::Tensor matrix = torch::randn({24, 40}, torch::kDouble);
  const NewtonSchulz muons{
      .coefficients = {3.4445, -4.7750, 2.0315}, .steps = 5, .eps = 1e-7, .is_in_bfloat16 = false};
  const at::Tensor scratch = torch::empty({NewtonSchulz::scratch_numel(24, 40)}, torch::kDouble);
  const at::Tensor result = matrix.clone();
  muons.apply(result, scratch);
  const at::Tensor values = at::linalg_svdvals(result);
  EXPECT_GT(values.min().item<double>(), 0.5);
  EXPECT_LT(values.max().item<double>(), 1.3);
  // The cubic iteration converges, though slowly.
  const NewtonSchulz cubic{
      .coefficients = {1.5, -0.5, 0}, .steps = 40, .eps = 1e-7, .is_in_bfloat16 = false};
  const at::Tensor exact = matrix.clone();
  cubic.apply(exact, scratch);
  EXPECT_LT((exact.mm(exact.t()) - torch::eye(24, torch::kDouble)).abs().max().item<double>(),
            1e-12);
  const at::Tensor zeros = torch::zeros({24, 40}, torch::kDouble);
  muons.apply(zeros, scratch);
  EXPECT_EQ(zeros.abs().max().item<double>(), 0.0);
}

std::string muon_refusal(const OptimizerPlan& plan,
                         std::vector<NamedTensor> tensors = {{"w", torch::ones({3, 4})}}) {
  for (const NamedTensor& each : tensors) each.tensor.set_requires_grad(true);
  const auto group_of = plan.assign(ParameterTable(std::move(tensors)));
  return group_of.ok() ? "accepted" : std::string(group_of.status().message());
}

TEST(Muon, SaysWhatIsOutOfRange) {
  ASSERT_EQ(algorithm_of(MuonOptions())->name, "Muon");
  EXPECT_EQ(muon_refusal(MuonOptions()), "accepted");
  EXPECT_THAT(
      muon_refusal(MuonOptions(-1).momentum(1).ns_steps(100)),
      AllOf(HasSubstr("[optim] defaults: lr: got -1"),
            HasSubstr("[optim] defaults: momentum: got 1, expected 0 <= momentum < 1"),
            HasSubstr("[optim] defaults: ns_steps: got 100, expected 0 <= ns_steps < 100")));
  EXPECT_TRUE(muon_algorithm().hyper_parameters[4].is_whole);
  EXPECT_EQ(muon_algorithm().hyper_parameters[4].problem(1.5),
            "ns_steps: got 1.5, expected 0 <= ns_steps < 100, whole");
  EXPECT_THAT(muon_refusal(MuonOptions().eps(0)), HasSubstr("eps: got 0, expected a number above"));
  EXPECT_THAT(muon_refusal(MuonOptions().adjust_lr(static_cast<MuonOptions::AdjustLr>(7))),
              HasSubstr("match_rms_adamw: got 7, expected 0 or 1"));
  EXPECT_THAT(muon_refusal(MuonOptions().ns_coefficients({std::nan(""), -5, 2})),
              HasSubstr("ns_a: got nan, expected a finite number"));
  EXPECT_EQ(OptimizerPlan(MuonOptions(0.5).ns_in_bfloat16(true)).lines()[0],
            "optimizer defaults: Muon lr 0.5 weight_decay 0.1 momentum 0.95 nesterov ns_steps 5 "
            "eps 1e-07 ns_in_bfloat16 ns_a 3.4445 ns_b -4.775 ns_c 2.0315");
}

TEST(Muon, TakesMatricesOnly) {
  const auto tensors = [] {
    return std::vector<NamedTensor>{{"conv", torch::ones({2, 2, 1, 1})},
                                    {"w", torch::ones({3, 4})},
                                    {"bias", torch::ones({4})},
                                    {"scale", torch::ones({})}};
  };
  EXPECT_EQ(
      muon_refusal(MuonOptions(), tensors()),
      "[optim] defaults: got parameter 'conv' with dim() == 4 and 2 more, expected dim() == 2, "
      "which Muon needs; give such parameters a group with a predicate on parameter.dim() == "
      "2, and the others another algorithm");
  const auto is_flat = [](std::string_view, const at::Tensor& of) { return of.dim() < 2; };
  EXPECT_THAT(
      muon_refusal({torch::optim::AdamWOptions(), {{"flat", is_flat, MuonOptions()}}}, tensors()),
      HasSubstr("[optim] group 'flat': got parameter 'bias' with dim() == 1 and 1 more"));
  const auto is_matrix = [](std::string_view, const at::Tensor& of) { return of.dim() == 2; };
  EXPECT_EQ(muon_refusal({torch::optim::AdamWOptions(), {{"matrices", is_matrix, MuonOptions()}}},
                         tensors()),
            "accepted");
}

}  // namespace
}  // namespace tessera::internal
