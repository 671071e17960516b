#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/pending.h"
#include "tessera/work.h"

namespace tessera::internal::nccl {

/// What the gathers on the host of one group, which follow each other, have in common.
struct HostChannel {
  std::vector<std::string> keys;  ///< of this rank's parts that peers may not have read yet
  bool is_open = false;           ///< one has started and is not over
};

/// A gather on the host, of two ranks or more, through the table: one key is written and one read
/// per rank. This rank's part is published at once; the others get it whatever becomes of the Work,
/// which may outlive its group. wait() blocks until the others' parts are there, for milliseconds
/// if they have started; a Work that is dropped instead gives up on them. Used by the thread that
/// uses the group. The world watches `pending`; `output` and `input` as ProcessGroup asks for.
std::shared_ptr<Work> start_host_gather(std::shared_ptr<Pending> pending,
                                        std::shared_ptr<HostChannel> channel, at::Tensor output,
                                        const at::Tensor& input);

}  // namespace tessera::internal::nccl
