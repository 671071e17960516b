#pragma once

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "tessera/options.h"

namespace tessera::internal::testing {

/// A row of the table of strategies, with the settings that tests vary: everything about a run that
/// must not change its results (except `precision`).
struct Configuration {
  std::string name;  ///< part of test names: letters, digits and underscores
  Strategy strategy = Strategy::kDdp;
  std::optional<Degrees> degrees = {};
  std::optional<int> reshard_after_forward = {};
  /// How parameters are wrapped where they are split.
  enum class Wrap : uint8_t {
    kLayers,  ///< each module with parameters of its own is a unit, so there are very many
    kBlocks,  ///< the default policy
    kWhole,   ///< one unit for all
  } wrap = Wrap::kLayers;
  Precision precision = {};
  std::optional<WeightAverage> average = {};
  std::optional<bool> prefetch = {};
  bool shares_parameters = true;
  bool optimizer_in_backward = false;
  Offload offload = Offload::kNone;
  std::optional<bool> asynchronous_step = {};
  bool poison_freed = false;
  bool free_eagerly = false;
  bool fixed_unsharded_buffers = false;

  /// Whether this configuration splits parameters in a world of more than one rank.
  bool splits_parameters() const;
  /// Whether its results have ddp's bits. Configurations with 1 < g < o keep partial sums, so they
  /// do not.
  bool keeps_bits() const;
  /// Whether its degrees divide `world`.
  bool suits(int world) const;
  /// Whether `world` ranks share one copy of the parameters.
  bool shares_at(int world) const;
  /// Over how many of `world` ranks each kind of state is split.
  Degrees degrees_at(int world) const;
};

/// Prints the name, for messages of tests.
std::ostream& operator<<(std::ostream& stream, const Configuration& configuration);

/// The configuration of a named strategy.
Configuration configuration_of(Strategy strategy);
/// A hybrid configuration; HSDP is {s, s, s}.
Configuration hybrid(int parameters, int gradients, int optimizer);
/// `configuration` with share_parameters off: each rank has its own parameters and
/// unsharded-parameter buffers, as ranks on different hosts do.
Configuration apart(Configuration configuration);
/// zero3 as apart() returns it, with units that stay split over `ranks` ranks between forward and
/// backward; if `ranks` is 1, they stay whole.
Configuration resharding(int ranks);
/// `configuration` in which a unit is whole only while an operator uses it, and freed memory holds
/// NaN.
Configuration hostile(Configuration configuration);

/// ddp, zero1, zero2 and zero3.
const std::vector<Configuration>& named_configurations();
/// zero1, zero2 and zero3, apart.
const std::vector<Configuration>& apart_configurations();
/// named_configurations() and apart_configurations().
std::vector<Configuration> named_and_apart_configurations();
/// All configurations of the equivalence suite whose degrees divide `world`: the named ones, those
/// of apart(), zero3 that reshards, is wrapped by default or is hostile, and hybrids.
std::vector<Configuration> configurations_of_world(int world);

/// The configurations for a suite that repeats the table for one optimizer, policy or scope: rows
/// that split units and share parameters in each possible way, or all of
/// configurations_of_world(world) if takes_all_rows().
std::vector<Configuration> spanning_configurations(int world);

/// The configuration with this name, in any world. Throws std::out_of_range.
Configuration configuration_called(const std::string& name);

/// Returns `configuration` as options.
Options options_of(const Configuration& configuration);

/// Sets buckets of `bytes`, the first of at most 1 MiB, if `configuration` keeps parameters whole;
/// otherwise buckets have no effect.
void set_buckets(Options& options, const Configuration& configuration, int64_t bytes);

/// Each module that has parameters of its own is a unit, except the model itself.
WrapPolicy wrap_layers();

}  // namespace tessera::internal::testing
