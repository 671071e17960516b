#include "tessera/core/options/resolved_options.h"

#include <c10/util/Exception.h>

#include "tessera/core/layout/slice_map.h"

namespace tessera::internal {
namespace {

// The default size of buckets between hosts. Small buckets shorten the two times without overlap:
// until the first bucket is complete the link is idle, and while the last one is sent nothing is
// left to compute.
constexpr int64_t kNetworkBucketBytes = int64_t{1} << 20;

}  // namespace

Degrees placement(const Options& options, int world_size) {
  switch (options.strategy) {
    case Strategy::kDdp:
      return {.parameters = 1, .gradients = 1, .optimizer = 1};
    case Strategy::kZero1:
      return {.parameters = 1, .gradients = 1, .optimizer = world_size};
    case Strategy::kZero2:
      return {.parameters = 1, .gradients = world_size, .optimizer = world_size};
    case Strategy::kZero3:
      return {.parameters = world_size, .gradients = world_size, .optimizer = world_size};
    case Strategy::kHybrid:
      TORCH_CHECK(options.degrees.has_value(),
                  "[zero] degrees: got none, strategy hybrid needs them");
      return SliceMap(*options.degrees, world_size, /*rank=*/0).degrees();
  }
  TORCH_INTERNAL_ASSERT(false, "strategy ", static_cast<int>(options.strategy));
}

absl::StatusOr<ResolvedOptions> resolve(const Options& options, const ParameterTable* model,
                                        const WorldTraits& world) {
  const absl::Status status = validate(options, model, &world);
  if (!status.ok()) return status;
  ResolvedOptions resolved{options};
  const Degrees degrees = placement(options, world.size);
  const bool offloads_parameters = options.offload == Offload::kParameters;
  resolved.degrees = degrees;
  if (degrees.parameters > 1 || options.free_eagerly || offloads_parameters) {
    resolved.residence = Residence::kSplit;
    resolved.prefetch = options.prefetch.value_or(world.can.in_background || offloads_parameters);
  }
  resolved.reshard_after_forward =
      degrees.parameters == 1 ? 1 : options.reshard_after_forward.value_or(degrees.parameters);
  resolved.on_non_finite = options.on_non_finite.value_or(
      options.loss_scale.has_value() ? NonFinite::kSkip : NonFinite::kStop);
  if (!options.bucket_bytes.empty()) {
    resolved.bucket_bytes = options.bucket_bytes;
  } else if (world.can.crosses_network) {
    resolved.bucket_bytes = {kNetworkBucketBytes};
  }
  resolved.units_in_reduction =
      options.units_in_reduction.value_or(world.can.in_background ? 2 : 1);
  resolved.asynchronous_step = options.asynchronous_step.value_or(
      !world.can.completes_on_host && options.offload == Offload::kNone &&
      !options.ask_non_finite && !keeps_partial_sums(degrees));
  const double divisor = options.gradient_divide_factor.value_or(world.size);
  resolved.gradient_divisor = divisor == world.size ? 0.0 : divisor;
  return resolved;
}

}  // namespace tessera::internal
