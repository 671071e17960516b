#pragma once

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {

/// Which modules become units of their own where parameters are split: the parameters of a unit are
/// gathered, freed and reduced together. Parameters that no chosen module owns form the root unit,
/// which is whole from its first use to the end of backward. tessera/wrap_rules.h has ready-made
/// policies; a default-constructed one means wrap_blocks(). For a rule of your own set `choose`, or
/// use wrap_if(), which is simpler.
struct WrapPolicy {
  /// For messages and comparison across ranks; a name without `choose` is an error.
  std::string name;

  /// Returns names of modules ("layers.0"), one inner list per unit; an inner list of several
  /// modules makes one unit of them. A chosen module inside another chosen module makes its own
  /// unit, and the outer module keeps its other parameters. The order of the lists has no meaning.
  /// Each name must occur once, and must be that of a module below the model; this module, or one
  /// below it, must own parameters. Every rank must choose the same; parallelize compares the
  /// units. If `choose` throws on a rank, parallelize throws on all ranks.
  std::function<std::vector<std::vector<std::string>>(const torch::nn::Module& model)> choose;
};

}  // namespace tessera
