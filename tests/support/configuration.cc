#include "tessera/tests/support/configuration.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>
#include <torch/nn/module.h>

#include "tessera/tests/support/breadth.h"

namespace tessera::internal::testing {

std::ostream& operator<<(std::ostream& stream, const Configuration& configuration) {
  return stream << configuration.name;
}

bool Configuration::splits_parameters() const {
  return strategy == Strategy::kZero3 || (degrees.has_value() && degrees->parameters > 1);
}

bool Configuration::keeps_bits() const {
  return !degrees.has_value() || degrees->gradients == 1 ||
         degrees->gradients == degrees->optimizer;
}

bool Configuration::suits(int world) const {
  if (degrees.has_value()) return world % degrees->optimizer == 0;
  return !reshard_after_forward.has_value() || world % *reshard_after_forward == 0;
}

Degrees Configuration::degrees_at(int world) const {
  if (degrees.has_value()) return *degrees;
  const auto split_from = [&](Strategy least) { return strategy >= least ? world : 1; };
  return {.parameters = split_from(Strategy::kZero3),
          .gradients = split_from(Strategy::kZero2),
          .optimizer = split_from(Strategy::kZero1)};
}

bool Configuration::shares_at(int world) const {
  const Degrees degrees = degrees_at(world);
  return shares_parameters && degrees.optimizer > 1 &&
         (degrees.parameters == 1 || degrees.parameters == degrees.optimizer);
}

Configuration configuration_of(Strategy strategy) {
  return {.name = std::string(to_string(strategy)), .strategy = strategy};
}

Configuration hybrid(int parameters, int gradients, int optimizer) {
  return {.name = absl::StrCat("hybrid_", parameters, "_", gradients, "_", optimizer),
          .strategy = Strategy::kHybrid,
          .degrees = Degrees{parameters, gradients, optimizer}};
}

Configuration apart(Configuration configuration) {
  configuration.name += "_apart";
  configuration.shares_parameters = false;
  return configuration;
}

Configuration resharding(int ranks) {
  return {.name = absl::StrCat("zero3_reshard_", ranks),
          .strategy = Strategy::kZero3,
          .reshard_after_forward = ranks,
          .shares_parameters = false};
}

Configuration hostile(Configuration configuration) {
  configuration.name += "_hostile";
  configuration.poison_freed = true;
  configuration.free_eagerly = true;
  return configuration;
}

const std::vector<Configuration>& named_configurations() {
  static const std::vector<Configuration> configurations = {
      configuration_of(Strategy::kDdp), configuration_of(Strategy::kZero1),
      configuration_of(Strategy::kZero2), configuration_of(Strategy::kZero3)};
  return configurations;
}

const std::vector<Configuration>& apart_configurations() {
  static const std::vector<Configuration> configurations = {
      apart(configuration_of(Strategy::kZero1)), apart(configuration_of(Strategy::kZero2)),
      apart(configuration_of(Strategy::kZero3))};
  return configurations;
}

std::vector<Configuration> named_and_apart_configurations() {
  std::vector<Configuration> configurations = named_configurations();
  configurations.insert(configurations.end(), apart_configurations().begin(),
                        apart_configurations().end());
  return configurations;
}

std::vector<Configuration> configurations_of_world(int world) {
  Configuration blocks = apart(configuration_of(Strategy::kZero3));
  blocks.name = "zero3_blocks";
  blocks.wrap = Configuration::Wrap::kBlocks;
  Configuration kept_blocks = resharding(1);
  kept_blocks.name = "zero3_blocks_reshard_1";
  kept_blocks.wrap = Configuration::Wrap::kBlocks;
  const Configuration zero3 = configuration_of(Strategy::kZero3);
  std::vector<Configuration> candidates = named_and_apart_configurations();
  for (Configuration configuration :
       {blocks, kept_blocks, resharding(1), resharding(2), hostile(zero3), hostile(apart(zero3)),
        hybrid(1, 1, 2), apart(hybrid(1, 1, 2)), hybrid(2, 2, 2), hostile(apart(hybrid(2, 2, 2))),
        hybrid(1, 2, 4), apart(hybrid(1, 2, 4)), hybrid(2, 4, 4), apart(hybrid(1, 1, 4)),
        hybrid(1, 2, 2), hybrid(3, 3, 3), hybrid(2, 6, 6), apart(hybrid(1, 3, 3))}) {
    candidates.push_back(std::move(configuration));
  }
  std::vector<Configuration> configurations;
  for (Configuration& configuration : candidates) {
    // Resharding over all ranks is what zero3 does by default.
    const bool is_new = configuration.reshard_after_forward != world || world == 1;
    if (configuration.suits(world) && is_new) configurations.push_back(std::move(configuration));
  }
  return configurations;
}

std::vector<Configuration> spanning_configurations(int world) {
  if (takes_all_rows()) return configurations_of_world(world);
  // Named configurations split alike in all worlds. Only an even world has groups of ranks in it.
  if (world > 2 && world % 2 == 0) {
    return {apart(configuration_of(Strategy::kZero2)), apart(hybrid(1, 1, 2)),
            world == 4 ? hybrid(2, 4, 4) : hybrid(2, 2, 2)};
  }
  return {configuration_of(Strategy::kZero1), apart(configuration_of(Strategy::kZero2)),
          configuration_of(Strategy::kZero3), apart(configuration_of(Strategy::kZero3))};
}

Configuration configuration_called(const std::string& name) {
  for (const int world : {2, 3, 4, 6}) {
    for (Configuration& configuration : configurations_of_world(world)) {
      if (configuration.name == name) return std::move(configuration);
    }
  }
  throw std::out_of_range("no configuration is called " + name);
}

Options options_of(const Configuration& configuration) {
  Options options{.strategy = configuration.strategy,
                  .degrees = configuration.degrees,
                  .reshard_after_forward = configuration.reshard_after_forward,
                  .precision = configuration.precision,
                  .average = configuration.average,
                  .share_parameters = configuration.shares_parameters,
                  .optimizer_in_backward = configuration.optimizer_in_backward,
                  .prefetch = configuration.prefetch,
                  .offload = configuration.offload,
                  .asynchronous_step = configuration.asynchronous_step,
                  .poison_freed = configuration.poison_freed,
                  .free_eagerly = configuration.free_eagerly,
                  .fixed_unsharded_buffers = configuration.fixed_unsharded_buffers};
  if (configuration.splits_parameters()) {
    if (configuration.wrap == Configuration::Wrap::kLayers) options.wrap = wrap_layers();
    if (configuration.wrap == Configuration::Wrap::kWhole) {
      options.wrap = {.name = "nothing", .choose = [](const torch::nn::Module&) {
                        return std::vector<std::vector<std::string>>{};
                      }};
    }
  }
  return options;
}

void set_buckets(Options& options, const Configuration& configuration, int64_t bytes) {
  if (configuration.splits_parameters()) return;
  options.bucket_bytes = {std::min(bytes, int64_t{1} << 20), bytes};
}

WrapPolicy wrap_layers() {
  const auto choose = [](const torch::nn::Module& model) {
    std::vector<std::vector<std::string>> units;
    for (const auto& module : model.named_modules("", /*include_self=*/false)) {
      if (!module.value()->parameters(/*recurse=*/false).empty()) units.push_back({module.key()});
    }
    return units;
  };
  return {.name = "layers", .choose = choose};
}

}  // namespace tessera::internal::testing
