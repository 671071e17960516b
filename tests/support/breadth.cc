#include "tessera/tests/support/breadth.h"

#include <cstdlib>

namespace tessera::internal::testing {

bool takes_all_rows() { return std::getenv("TESSERA_TEST_ALL") != nullptr; }

bool has_turn(size_t i, size_t n) { return takes_all_rows() || i % n == 0; }

std::vector<int> spanning_worlds() {
  return takes_all_rows() ? std::vector<int>{1, 2, 3, 4} : std::vector<int>{1, 3, 4};
}

std::vector<int> spanning_sizes(std::vector<int> sizes) {
  if (!takes_all_rows() && sizes.size() > 2) sizes.erase(sizes.begin() + 1, sizes.end() - 1);
  return sizes;
}

}  // namespace tessera::internal::testing
