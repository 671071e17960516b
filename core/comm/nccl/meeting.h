#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/communicator.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/work.h"

namespace tessera::internal::nccl {

// Exchanges between a group's ranks that do not use NCCL's collectives, most of them through the
// world's SharedTable. `pending` is the call that needs the exchange. All functions throw CommError
// if `pending` times out or its world fails.

/// Collective, blocks for a few milliseconds. Every rank passes a text, and gets the texts of all
/// ranks, by rank. `what` says what is exchanged; it is part of the keys in the table. If the
/// ranks' calls differ, every rank throws CommError that names both calls.
std::vector<std::string> exchange(Pending& pending, std::string_view what, std::string_view text);

/// State that a group's successive gathers on the host share.
struct HostChannel {
  std::vector<std::string> keys;  ///< keys of this rank's parts that peers may still read
  bool is_open = false;           ///< a gather has started and has not ended
};

/// Starts a gather on the host, between at least two ranks, through the table: each rank writes one
/// key, and reads one key per rank. This rank's part is published at once, so the other ranks get
/// it even if the Work is dropped. The Work may outlive its group. The other ranks' parts are read
/// only in Work::wait(), which blocks until they are there: for milliseconds if those ranks have
/// started their gathers. Only the thread that uses the group may call this and use the Work. The
/// world must watch `pending`; `output` and `input` are as ProcessGroup requires.
std::shared_ptr<Work> start_store_gather(std::shared_ptr<Pending> pending,
                                         std::shared_ptr<HostChannel> channel, at::Tensor output,
                                         const at::Tensor& input);

/// Throws if `result`, of an NCCL call on `communicator`, is an error. kInProgress is not an error.
/// nullopt is an error: the communicator has been finished or aborted.
void check_result(Pending& pending, Communicator& communicator, std::optional<Result> result);

/// Blocks until Communicator::poll() returns kSuccess: until the init or split that was started on
/// `communicator` has finished, or the collective has been queued.
void await_ready(Pending& pending, Communicator& communicator);

/// Collective, blocks. Returns a communicator of the ranks of `parent` with the same `color`,
/// ordered by `key`; null for kNoColor. Nothing may be in flight on `parent`.
std::shared_ptr<Communicator> split(Pending& pending, Communicator& parent, int color, int key,
                                    const std::string& name, bool uses_copy_engines = false);

/// Collective, blocks. Returns the communicator of all ranks of the world. Rank 0 passes its id to
/// the other ranks through the table.
std::shared_ptr<Communicator> meet(Pending& pending);

}  // namespace tessera::internal::nccl
