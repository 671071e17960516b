#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/core/comm/nccl/progress.h"
#include "tessera/core/comm/nccl/world.h"

namespace tessera::internal::nccl {

// Set-up among the ranks of a group. All functions are collective and block. They throw the
// CommError of `pending`, which stands for the call, when that times out or the world fails.

/// Where a rank's part of an exchange lies in the table.
std::string exchange_key(const Progress& progress, int64_t sequence, std::string_view what,
                         int rank);

/// The two halves of exchange(): puts this rank's text and returns its key; waits for every rank's.
std::string give(World& world, Pending& pending, int rank, std::string_view what,
                 const std::string& text);
std::vector<std::string> take(World& world, Pending& pending, std::string_view what);

/// Every rank's text, by rank. Through the table: a few milliseconds.
std::vector<std::string> exchange(World& world, Pending& pending, int rank, std::string_view what,
                                  const std::string& text);

/// Throws unless a call into NCCL has succeeded so far; no result means that the communicator was
/// destroyed or aborted before.
void check_result(World& world, Pending& pending, Communicator& communicator,
                  std::optional<Result> result);

/// Blocks until the operation that was started on `communicator` has finished.
void await_ready(World& world, Pending& pending, Communicator& communicator);

/// A communicator of the ranks of `parent` with this colour, ordered by key; null for kNoColor.
/// Nothing may be in flight on `parent`.
std::shared_ptr<Communicator> split(World& world, Pending& pending, Communicator& parent, int color,
                                    int key, const std::string& name,
                                    Communicator::Engine engine = Communicator::Engine::kKernels);

/// What gathers on a gather lane of this world.
Communicator::Engine gather_engine(const World& world);

/// The communicator of the whole world; the id travels through the table, and the options, which
/// must be equal.
std::shared_ptr<Communicator> meet(World& world, Pending& pending);

/// "world: gather lane".
std::string lane_name(std::string_view group, std::string_view lane);

}  // namespace tessera::internal::nccl
