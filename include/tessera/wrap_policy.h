#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Which modules become units of their own where parameters are split: the parameters of a unit are
/// gathered, freed and reduced together. What no chosen module owns is the root unit, which is
/// whole from its first use to the end of backward. The rules are in tessera/wrap_rules.h; made
/// empty, it is wrap_blocks(). A rule of your own is a function; wrap_if() asks for less.
struct WrapPolicy {
  std::string name;  ///< for messages and comparison across ranks

  /// Names of modules ("layers.0"), one inner list per unit; an inner list of several modules makes
  /// one unit of them. A module inside another chosen one makes its own unit, and the outer one
  /// keeps the rest. The order of the lists has no meaning. Each name must be that of a module
  /// below the model that owns parameters, itself or below, and occur once. Deterministic: every
  /// rank must choose the same, which parallelize checks by comparing the units. What it throws is
  /// refused on all ranks.
  std::function<std::vector<std::vector<std::string>>(const torch::nn::Module& model)> choose;
};

}  // namespace tessera
