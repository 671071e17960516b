#pragma once

#include <cstddef>
#include <vector>

namespace tessera::internal::testing {

/// Returns true if this run tests every row of each product of configurations, worlds, models and
/// schedules: if TESSERA_TEST_ALL is set, as under `make test-all`. Otherwise suites take rows that
/// span the product; docs/testing.md says which rows, and which faults these still find.
bool takes_all_rows();

/// For rows that are counted from 0: returns true if row `i` is one of every `n`, or if all rows
/// are taken.
bool has_turn(size_t i, size_t n);

/// The world sizes of a suite that repeats itself in each: 1, an odd one, and one with groups of
/// ranks in it; with all rows also 2.
std::vector<int> spanning_worlds();

/// For a suite without groups of ranks in a world: the first and the last of `sizes` (ascending);
/// with all rows `sizes`.
std::vector<int> spanning_sizes(std::vector<int> sizes);

}  // namespace tessera::internal::testing
