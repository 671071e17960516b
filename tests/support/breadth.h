#pragma once

#include <cstddef>
#include <vector>

namespace tessera::internal::testing {

/// Returns true if this run tests every row of each product of configurations, worlds, models and
/// schedules: if TESSERA_TEST_ALL is set, as under `make test-all`. Otherwise suites take rows that
/// span the product; docs/testing.md says which rows, and which faults these still find.
bool takes_all_rows();

/// Returns true if this run tests row `i`, counted from 0: every n-th row, or all rows if
/// takes_all_rows().
bool has_turn(size_t i, size_t n);

/// Returns the world sizes in which a suite runs: 1, an odd one, and one that can contain groups of
/// ranks; if takes_all_rows() also 2.
std::vector<int> spanning_worlds();

/// Returns the first and the last of `sizes` (ascending), for a suite in which a world contains no
/// groups of ranks. Returns `sizes` if takes_all_rows().
std::vector<int> spanning_sizes(std::vector<int> sizes);

}  // namespace tessera::internal::testing
