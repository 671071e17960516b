#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/device/device.h"

namespace tessera::internal {

/// Copies shards that lie in the host's memory (Offload::kParameters) to where units are gathered
/// on the device, on a stream of its own. One for all units of an engine. Used by one thread at a
/// time. Note [Offload] in zero/step/offloaded_gradients.cc.
class HostShards {
 public:
  explicit HostShards(std::shared_ptr<Device> device);

  /// Queues `to` = `shard` after everything on the current stream so far. Until the returned scope
  /// ends, the calling thread's current stream is the copying one: work queued there follows the
  /// copy, and the previously current stream does not wait.
  std::shared_ptr<void> bring(const at::Tensor& to, const at::Tensor& shard);

  /// Blocks until every copy has run, so that the host may write shards.
  void await() { copied_->synchronize(); }

 private:
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<Stream> stream_;
  const std::shared_ptr<Event> begun_;
  const std::shared_ptr<Event> copied_;
};

}  // namespace tessera::internal
