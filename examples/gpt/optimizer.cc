#include "tessera/examples/gpt/optimizer.h"

#include <array>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "tessera/eight_bit_options.h"
#include "tessera/examples/gpt/model.h"
#include "tessera/lion_options.h"
#include "tessera/muon_options.h"

namespace gpt {
namespace {

template <typename Options>
tessera::AlgorithmOptions adam(double lr, double weight_decay) {
  return Options(lr).betas({0.9, 0.95}).eps(1e-8).weight_decay(weight_decay);
}

tessera::AlgorithmOptions sgd(double lr, double weight_decay) {
  return torch::optim::SGDOptions(lr).momentum(0.9).weight_decay(weight_decay);
}

tessera::AlgorithmOptions lion(double lr, double weight_decay) {
  return tessera::LionOptions(lr).weight_decay(weight_decay);
}

tessera::AlgorithmOptions adamw8bit(double lr, double weight_decay) {
  return tessera::AdamW8bitOptions(lr).betas({0.9, 0.95}).eps(1e-8).weight_decay(weight_decay);
}

/// Muon, with updates scaled so that matrices can use the learning rate that AdamW has for the
/// rest.
tessera::AlgorithmOptions muon(double lr, double weight_decay) {
  return tessera::MuonOptions(lr)
      .adjust_lr(tessera::MuonOptions::AdjustLr::kMatchRmsAdamW)
      .weight_decay(weight_decay);
}

std::string or_list(const std::vector<std::string>& names) {
  const std::vector<std::string> all_but_last(names.begin(), names.end() - 1);
  return absl::StrCat(absl::StrJoin(all_but_last, ", "), " or ", names.back());
}

}  // namespace

std::span<const Optimizer> optimizers() {
  using torch::optim::AdamOptions;
  using torch::optim::AdamWOptions;
  static constexpr std::array kAll = {
      Optimizer{"adamw", "AdamW", "weight decay beside the gradient", 3e-3, 3e-4, 0.1,
                "two moments", &adam<AdamWOptions>, 8},
      Optimizer{"adam", "Adam", "weight decay added to the gradient", 3e-3, 3e-4, 0, "two moments",
                &adam<AdamOptions>, 8},
      Optimizer{"sgd", "SGD", "with momentum 0.9", 0.3, 0.03, 0, "a momentum", &sgd, 4},
      Optimizer{"lion", "Lion", "the sign of a momentum", 1e-3, 1e-4, 0.3, "a momentum", &lion, 4},
      Optimizer{"muon", "Muon", "orthogonal steps for matrices, AdamW for the rest", 3e-3, 3e-4,
                0.1, "a momentum of matrices and two moments of the rest", &muon, 4,
                &adam<AdamWOptions>, 8},
      Optimizer{"adamw8bit", "8-bit AdamW", "AdamW with moments in 8 bits", 3e-3, 3e-4, 0.1,
                "two moments in 8 bits", &adamw8bit, 2.125}};
  return kAll;
}

tessera::OptimizerPlan optimizer_plan(const Optimizer& optimizer, double lr, double weight_decay) {
  return {
      optimizer.options(lr, weight_decay),
      {{.name = "biases, norms, embeddings",
        .selects = [](std::string_view parameter) { return !Gpt::decays(parameter); },
        .options = (optimizer.others != nullptr ? optimizer.others : optimizer.options)(lr, 0.0)}}};
}

std::string optimizer_help() {
  std::vector<std::string> rows;
  for (const Optimizer& row : optimizers()) {
    rows.push_back(absl::StrCat(row.name, ": ", row.summary));
  }
  return absl::StrCat("the algorithm that updates the parameters; ", absl::StrJoin(rows, "; "));
}

std::string defaults_help(double Optimizer::*number) {
  std::vector<std::string> rows;
  for (const Optimizer& row : optimizers()) {
    rows.push_back(absl::StrCat(row.*number, " under ", row.name));
  }
  return absl::StrJoin(rows, ", ");
}

bool AbslParseFlag(absl::string_view text, OptimizerFlag* flag, std::string* error) {
  std::vector<std::string> names;
  for (const Optimizer& row : optimizers()) {
    if (text == row.name) {
      flag->optimizer = &row;
      return true;
    }
    names.emplace_back(row.name);
  }
  *error = absl::StrCat("got '", text, "', expected ", or_list(names));
  return false;
}

std::string AbslUnparseFlag(const OptimizerFlag& flag) { return flag.optimizer->name; }

}  // namespace gpt
