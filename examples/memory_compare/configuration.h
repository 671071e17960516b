#pragma once

#include <optional>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <c10/core/DeviceType.h>

#include "tessera/strategy.h"

namespace memory_compare {

/// A configuration to compare: a way to split the training state.
struct Configuration {
  tessera::Strategy strategy = tessera::Strategy::kDdp;
  std::optional<tessera::Degrees> degrees;   ///< of a hybrid
  std::optional<int> reshard_after_forward;  ///< Options::reshard_after_forward
  bool is_apart = false;                     ///< Options::share_parameters = false
  friend bool operator==(const Configuration&, const Configuration&) = default;
};

/// "zero3", "zero3:apart" (share_parameters = false), "zero3:1:apart" (and reshard_after_forward),
/// "hybrid:2,4,4", "hybrid:4,4,4:2:apart": the form in flags and tables.
std::string to_string(const Configuration& configuration);
absl::StatusOr<Configuration> parse_configuration(const std::string& text);

/// Configurations separated by spaces; the error lists every bad one.
absl::StatusOr<std::vector<Configuration>> parse_configurations(const std::string& text);

/// The configurations that make sense for `ranks` ranks: the named strategies; on CPUs also those
/// with copies per rank (on GPUs there are no others); zero3 with units that stay whole; and, if a
/// number S divides `ranks`, the hybrids S,S,S (HSDP), 1,S,world and S,world,world for the largest
/// such S below `ranks`. One rank has nothing to split: ddp alone.
std::vector<Configuration> default_configurations(int ranks,
                                                  c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace memory_compare
