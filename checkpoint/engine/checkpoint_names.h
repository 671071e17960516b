#pragma once

#include <string>
#include <string_view>

namespace tessera::internal {

/// Return the name of the entry for a tensor that a program saves beside the engine's state.
/// extra_entry(): for a tensor of the whole program, "extra/<name>". rank_entry(): for a tensor of
/// rank R alone, "rank-<R>/<name>".
std::string extra_entry(std::string_view name);
std::string rank_entry(int rank, std::string_view name);

/// Returns true if `entry` is a name in the engine's state (StateDict), and not the name of an
/// extra_entry() or a rank_entry().
bool is_state_entry(std::string_view entry);

/// Returns the part of `entry` after `prefix`; empty if `entry` does not begin with `prefix`.
std::string_view name_after(std::string_view entry, std::string_view prefix);

}  // namespace tessera::internal
