#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// Names of a checkpoint's entries that are not the engine's: "extra/<name>" is the program's,
/// "rank-<R>/<name>" rank R's own.
std::string extra_entry(std::string_view name);
std::string rank_entry(int rank, std::string_view name);

/// Returns true if an entry is the engine's (StateDict's names), and not one of the above.
bool is_state_entry(std::string_view entry);

/// Returns the <name> in `entry` if it begins with `prefix`, else empty.
std::string_view name_after(std::string_view entry, std::string_view prefix);

}  // namespace tessera::internal
