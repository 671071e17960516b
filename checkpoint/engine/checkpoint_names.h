#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// Return the names of entries that a checkpoint has beside the engine's: "extra/<name>" for the
/// program, "rank-<R>/<name>" for rank R alone.
std::string extra_entry(std::string_view name);
std::string rank_entry(int rank, std::string_view name);

/// Returns true if `entry` belongs to the engine (it is a StateDict name), so is neither of the
/// above.
bool is_state_entry(std::string_view entry);

/// Returns the <name> in `entry` if it begins with `prefix`, else empty.
std::string_view name_after(std::string_view entry, std::string_view prefix);

}  // namespace tessera::internal
