#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/nccl/control_channel.h"
#include "tessera/core/comm/nccl/pending.h"
#include "tessera/work.h"

namespace tessera::internal::nccl {

/// A gather on the host that has been started: this rank's part is published. Used by the thread
/// that uses its group.
class HostGather final : public Work {
 public:
  /// Starts. The world watches `pending`. `output` and `input` as ProcessGroup asks for.
  HostGather(std::shared_ptr<Pending> pending, std::shared_ptr<ControlChannel> channel,
             at::Tensor output, const at::Tensor& input);
  /// Gives up on the others' parts, unless it has waited.
  ~HostGather() override;
  HostGather(const HostGather&) = delete;
  HostGather& operator=(const HostGather&) = delete;

  /// Whether wait() has been through.
  bool is_completed() override { return pending_->is_completed(); }
  void wait() override;

 private:
  void take(const std::vector<std::string>& parts);

  const std::shared_ptr<Pending> pending_;
  const std::shared_ptr<ControlChannel> channel_;
  const at::Tensor output_;
  const size_t part_bytes_;
  bool is_open_ = true;
};

}  // namespace tessera::internal::nccl
