#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <c10/core/Device.h>

#include "tessera/core/layout/unit_memory.h"
#include "tessera/options.h"
#include "tessera/parameter_table.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Properties of the engine's group that the option rules use. A plain value, so that every rule
/// can be tested without ranks and devices.
struct WorldTraits {
  int size = 1;
  at::Device device = at::kCPU;  ///< where parameters lie
  std::string backend = "shm";   ///< its name, for error texts
  Capabilities can = {.one_sided_reads = true};
};

/// Options in which every field has its final value; all code below parallelize() takes these. The
/// base class holds what the user passed. The fields below replace fields of the base class that
/// may be unset, and hide those that have the same name.
struct ResolvedOptions : Options {
  Degrees degrees = {};
  Residence residence = Residence::kResident;
  /// Over how many ranks a unit stays split between its forward and its backward. 1: it stays
  /// whole. p: it is freed.
  int reshard_after_forward = 1;
  NonFinite on_non_finite = NonFinite::kStop;
  std::vector<int64_t> bucket_bytes = {int64_t{1} << 20, int64_t{25} << 20};  ///< not empty
  int units_in_reduction = 1;
  bool prefetch = false;
  bool asynchronous_step = false;
  /// What the sum of gradients over ranks is divided by; 0: the number of ranks, which gives the
  /// mean.
  double gradient_divisor = 0.0;
};

/// Checks `options` for `model` and `world`, which may be null if not known. Returns OK, or
/// InvalidArgument with every problem, one per line. Rules about the optimizer and modules are
/// elsewhere. Local.
absl::Status validate(const Options& options, const ParameterTable* model,
                      const WorldTraits* world);

/// Returns `options` resolved for the parameters `model` (may be null) in `world`, or the error of
/// validate(). Local.
absl::StatusOr<ResolvedOptions> resolve(const Options& options, const ParameterTable* model,
                                        const WorldTraits& world);

/// Returns over how many of `world_size` ranks the strategy splits parameters, gradients and
/// optimizer state. This function alone maps each Strategy to its degrees. Throws c10::Error if a
/// hybrid's degrees do not fit the world.
Degrees placement(const Options& options, int world_size);

/// Returns one line per field, as the user set it, for comparison across ranks. `ignores` and
/// `ignores_buffers` have no line, because the sets that they select are compared instead.
std::vector<std::string> lines(const Options& options);

}  // namespace tessera::internal
