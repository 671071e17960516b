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

/// Convert a configuration to its form in flags and tables, and back: "zero3", "zero3:apart"
/// (share_parameters = false), "zero3:1:apart" (also reshard_after_forward = 1), "hybrid:2,4,4",
/// "hybrid:4,4,4:2:apart".
std::string to_string(const Configuration& configuration);
absl::StatusOr<Configuration> parse_configuration(const std::string& text);

/// Parses configurations that are separated by spaces. The error lists every bad one.
absl::StatusOr<std::vector<Configuration>> parse_configurations(const std::string& text);

/// Returns the configurations that make sense for `ranks` ranks. For one rank, which has nothing to
/// split, that is ddp alone. Otherwise:
/// - ddp, zero1, zero2 and zero3; on CPUs, zero1 to zero3 also with a copy of the parameters per
///   rank (on GPUs each rank always has its own);
/// - zero3 whose units stay whole after forward (reshard_after_forward = 1);
/// - the hybrids S,S,S (HSDP), S,ranks,ranks and 1,S,ranks for the largest S that divides `ranks`,
///   if there is one with 1 < S < `ranks`.
std::vector<Configuration> default_configurations(int ranks,
                                                  c10::DeviceType device = c10::DeviceType::CPU);

}  // namespace memory_compare
