#include "tessera/tests/support/checkpoint.h"

#include <utility>

#include "tessera/activation_checkpoint.h"

namespace tessera::internal::testing {

at::Tensor checkpoint(std::function<at::Tensor(const at::Tensor&)> block, const at::Tensor& input) {
  // Ranks that are threads share the generator, so restoring it would disturb the other ranks.
  return tessera::checkpoint({.preserve_random_state = false}, std::move(block), input);
}

}  // namespace tessera::internal::testing
