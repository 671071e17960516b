#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>

#include "tessera/fsdp/shard_uploads.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// All-gathers a split unit, where ranks cannot read each other's memory. Collective: the ranks of
/// a group must gather the same units in the same order, or the group fails at its time-out. There
/// are no second shards.
class CollectiveSource {
 public:
  /// `group` must consist of the ranks that differ from this one only in SliceMap's coordinate of
  /// the parameters, in the order of that coordinate. It must outlive this object. `shard`: this
  /// rank's slice of the unit's parameters. `host` copies the shard to the device; null if the
  /// shard lies there already.
  CollectiveSource(ProcessGroup& group, std::string name, at::Tensor shard,
                   std::shared_ptr<ShardUploads> host = nullptr);

  /// Starts to gather the whole unit into `to` [unit numel]. Collective. If the group has failed,
  /// either this call or the returned Work throws CommError.
  std::shared_ptr<Work> start(const at::Tensor& to);

  /// Returns how many bytes of the unit come from other ranks.
  int64_t received_bytes() const;

 private:
  ProcessGroup& group_;
  const std::string name_;
  const at::Tensor shard_;
  const std::shared_ptr<ShardUploads> host_;
};

}  // namespace tessera::internal
