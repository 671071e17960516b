#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <absl/strings/string_view.h>

#include "tessera/optimizer_plan.h"

namespace gpt {

/// An algorithm that --optimizer chooses, and how this model is trained with it.
struct Optimizer {
  const char* name;     ///< on the command line: "adamw"
  const char* label;    ///< "AdamW"
  const char* summary;  ///< for help texts
  double lr;            ///< highest learning rate
  double min_lr;        ///< learning rate at the end
  double weight_decay;  ///< of matrices
  const char* states;   ///< its states per parameter: "two moments"
  tessera::AlgorithmOptions (*options)(double lr, double weight_decay);
  double state_bytes;  ///< bytes of states per element of an fp32 parameter that it trains
  /// Options of the algorithm for all other parameters, if this one is for matrices only; null if
  /// this one trains all parameters.
  tessera::AlgorithmOptions (*others)(double lr, double weight_decay) = nullptr;
  double others_state_bytes = 0;  ///< state_bytes of the parameters that `others` trains
};

/// All algorithms, the default first. A new algorithm is a line of this table.
std::span<const Optimizer> optimizers();

/// The model's matrices (Gpt::decays()) are trained with `weight_decay`, all other parameters
/// without it.
tessera::OptimizerPlan optimizer_plan(const Optimizer& optimizer, double lr, double weight_decay);

/// An algorithm on the command line, by its name.
struct OptimizerFlag {
  const Optimizer* optimizer = &optimizers().front();
};

/// For ABSL_FLAG's help: the available algorithms.
std::string optimizer_help();
/// For ABSL_FLAG's help: a number's defaults, "0.003 under adamw, ...".
std::string defaults_help(double Optimizer::*number);

bool AbslParseFlag(absl::string_view text, OptimizerFlag* flag, std::string* error);
std::string AbslUnparseFlag(const OptimizerFlag& flag);

}  // namespace gpt
