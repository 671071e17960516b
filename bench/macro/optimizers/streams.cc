#include "tessera/bench/macro/optimizers/streams.h"

#include "tessera/core/numbers/vector_targets.h"
#include "tessera/optim/algorithm/element_loop.h"

namespace bench {

using tessera::internal::for_each_element;

TESSERA_VECTOR_TARGETS void pass(const std::array<float*, 3>& arrays, int64_t numel) {
  const auto [a, b, added] = arrays;
  for_each_element(
      numel, [ a = a, b = b, added = added ](int64_t i) __attribute__((always_inline)) {
        const float by = added[i];
        a[i] = a[i] + by;
        b[i] = b[i] + by;
      });
}

TESSERA_VECTOR_TARGETS void pass(const std::array<float*, 4>& arrays, int64_t numel) {
  const auto [a, b, c, added] = arrays;
  for_each_element(
      numel, [ a = a, b = b, c = c, added = added ](int64_t i) __attribute__((always_inline)) {
        const float by = added[i];
        a[i] = a[i] + by;
        b[i] = b[i] + by;
        c[i] = c[i] + by;
      });
}

}  // namespace bench
