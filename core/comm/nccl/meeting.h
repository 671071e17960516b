#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/pending.h"

namespace tessera::internal::nccl {

// What the ranks of a group do together before, and beside, what NCCL carries. `pending` stands for
// the call; all functions throw its CommError when it times out or its world fails.

/// Every rank's text, by rank. Collective, blocks: through the table, a few milliseconds. If the
/// ranks' calls differ, every rank throws CommError that names both calls.
std::vector<std::string> exchange(Pending& pending, std::string_view what, std::string_view text);

/// The two halves of exchange(), which use the table in a world of one, too: puts this rank's text,
/// and returns the key that it has in the table; waits for every rank's.
std::string give(Pending& pending, std::string_view what, std::string_view text);
std::vector<std::string> take(Pending& pending, std::string_view what);

/// Throws unless a call into NCCL has succeeded so far; no result means that the communicator was
/// finished or aborted before.
void check_result(Pending& pending, Communicator& communicator, std::optional<Result> result);

/// Blocks until the operation that was started on `communicator` has finished.
void await_ready(Pending& pending, Communicator& communicator);

/// Collective, blocks. A communicator of the ranks of `parent` with this colour, ordered by key;
/// null for kNoColor. Nothing may be in flight on `parent`.
std::shared_ptr<Communicator> split(Pending& pending, Communicator& parent, int color, int key,
                                    const std::string& name, bool uses_copy_engines = false);

/// Collective, blocks. The communicator of the whole world; its id travels through the table.
std::shared_ptr<Communicator> meet(Pending& pending);

}  // namespace tessera::internal::nccl
