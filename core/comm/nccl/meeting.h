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

// Exchanges of a group's ranks through the table, before and besides NCCL's collectives. `pending`
// stands for the call; all functions throw its CommError when it times out or its world fails.

/// Collective, blocks. Returns every rank's text, by rank: through the table, in a few
/// milliseconds. If the ranks' calls differ, every rank throws CommError that names both calls.
std::vector<std::string> exchange(Pending& pending, std::string_view what, std::string_view text);

/// State that the successive gathers on the host of one group share.
struct HostChannel {
  std::vector<std::string> keys;  ///< of this rank's parts that peers may not have read yet
  bool is_open = false;           ///< one has started and is not over
};

/// A gather on the host, of two ranks or more, through the table: one key is written and one read
/// per rank. This rank's part is published at once; the others get it whatever becomes of the Work,
/// which may outlive its group. wait() blocks until the others' parts are there, for milliseconds
/// if they have started; a Work that is dropped instead gives up on them. Used by the thread that
/// uses the group. The world watches `pending`; `output` and `input` as ProcessGroup asks for.
std::shared_ptr<Work> start_store_gather(std::shared_ptr<Pending> pending,
                                         std::shared_ptr<HostChannel> channel, at::Tensor output,
                                         const at::Tensor& input);

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
