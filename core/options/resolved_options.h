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
  std::string backend = "shm";   ///< for messages
  Capabilities can = {.one_sided_reads = true};
};

/// Options without unset fields; all code below parallelize() takes them. The base class is what
/// the user passed; the fields here hide its fields that may be unset.
struct ResolvedOptions : Options {
  Degrees degrees = {};
  Residence residence = Residence::kResident;
  int reshard_after_forward = 1;  ///< number of ranks; if equal to p, units are freed
  NonFinite on_non_finite = NonFinite::kStop;
  std::vector<int64_t> bucket_bytes = {int64_t{1} << 20, int64_t{25} << 20};  ///< not empty
  int units_in_reduction = 1;
  bool prefetch = false;
  bool asynchronous_step = false;
  double gradient_divisor = 0.0;  ///< 0: gradients are the mean over ranks
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
/// optimizer state. The only switch on Strategy. Throws c10::Error if a hybrid's degrees do not fit
/// the world.
Degrees placement(const Options& options, int world_size);

/// Returns one line per field, as the user set it, for comparison across ranks. `ignores` and
/// `ignores_buffers` have no line, because the sets that they select are compared instead.
std::vector<std::string> lines(const Options& options);

}  // namespace tessera::internal
