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
/// per rank. When it is made this rank's part is published; the others get it whatever becomes of
/// the Work, which may outlive its group. Used by the thread that uses the group.
class HostGather final : public Work {
 public:
  /// Starts. The world watches `pending`. `output` and `input` as ProcessGroup asks for.
  HostGather(std::shared_ptr<Pending> pending, std::shared_ptr<HostChannel> channel,
             at::Tensor output, const at::Tensor& input);
  /// Gives up on the others' parts, unless it has waited.
  ~HostGather() override;
  HostGather(const HostGather&) = delete;
  HostGather& operator=(const HostGather&) = delete;

  /// Whether wait() has been through.
  bool is_completed() override { return pending_->is_completed(); }
  /// Blocks until the others' parts are there, for milliseconds if they have started.
  void wait() override;

 private:
  void take_parts();

  const std::shared_ptr<Pending> pending_;
  const std::shared_ptr<HostChannel> channel_;
  const at::Tensor output_;
  bool is_open_ = true;
};

}  // namespace tessera::internal::nccl
