#include "tessera/core/step/parameter_hash.h"

#include <memory>

#include <xxhash.h>

#include <c10/util/Exception.h>

namespace tessera::internal {

uint64_t hash_parameter(const Parameter& parameter) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  TORCH_INTERNAL_ASSERT(state != nullptr && XXH3_64bits_reset(state.get()) == XXH_OK);
  const at::Tensor values = parameter.tensor.detach().contiguous().cpu();
  const auto dtype = static_cast<int32_t>(values.scalar_type());
  XXH3_64bits_update(state.get(), parameter.name.data(), parameter.name.size() + 1);
  XXH3_64bits_update(state.get(), &dtype, sizeof(dtype));
  XXH3_64bits_update(state.get(), values.sizes().data(), values.sizes().size() * sizeof(int64_t));
  if (values.numel() > 0) {
    XXH3_64bits_update(state.get(), values.const_data_ptr(), values.nbytes());
  }
  return XXH3_64bits_digest(state.get());
}

uint64_t combine_hashes(std::span<const uint64_t> hashes) {
  return XXH3_64bits(hashes.data(), hashes.size_bytes());
}

}  // namespace tessera::internal
