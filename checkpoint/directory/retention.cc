#include "tessera/checkpoint/directory/retention.h"

#include <algorithm>
#include <iterator>

namespace tessera::internal {

std::vector<int64_t> steps_to_delete(const std::vector<int64_t>& committed,
                                     const Retention& retention) {
  const auto all = static_cast<int64_t>(committed.size());
  const int64_t older = all - std::min(all, std::max<int64_t>(retention.keep_last, 1));
  std::vector<int64_t> steps;
  std::copy_if(
      committed.begin(), committed.begin() + older, std::back_inserter(steps),
      [&](int64_t step) { return retention.keep_every <= 0 || step % retention.keep_every != 0; });
  return steps;
}

}  // namespace tessera::internal
