#pragma once

#include <cstddef>
#include <vector>

namespace tessera::internal::testing {

/// Whether this run takes all rows of every product of configurations, worlds, models and
/// schedules: where the environment has TESSERA_TEST_ALL, as under `make test-all`. After each
/// change suites take rows that span the product instead; docs/testing.md says which, and what that
/// still notices.
bool takes_all_rows();

/// Of rows that are counted from 0: whether row `i` is one of each `n`, or all rows are taken.
bool has_turn(size_t i, size_t n);

/// The worlds of a suite that repeats itself in each: 1, an odd one, and one that has groups of
/// ranks within it; with all rows also 2.
std::vector<int> spanning_worlds();

/// Of a suite that has no groups of ranks within a world: `sizes`, ascending, or the first and the
/// last of them.
std::vector<int> spanning_sizes(std::vector<int> sizes);

}  // namespace tessera::internal::testing
