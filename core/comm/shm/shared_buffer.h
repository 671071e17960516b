#pragma once

#include <memory>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/comm/shared_buffer.h"
#include "tessera/core/comm/shm/arena.h"

namespace tessera::shm {

/// One segment of the first rank, mapped twice by every rank: shared, and private (copy on write).
class SharedBuffer final : public tessera::SharedBuffer {
 public:
  /// Collective over `group`, whose ranks are on one host; blocking. `bytes` zero bytes. If the
  /// first rank has no space, or another cannot map them, all ranks throw c10::Error that names it.
  /// Null on all ranks if the system does not show common writes in private mappings (POSIX leaves
  /// that open, Linux does it).
  static std::unique_ptr<SharedBuffer> make(ProcessGroup& group, int64_t bytes,
                                            std::string_view name);

  at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  std::optional<int64_t> find_own_write() override;
  void drop_own_writes() override;

 private:
  /// This rank's private mapping of a segment.
  class View;

  SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<View> view);

  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<View> view_;
};

}  // namespace tessera::shm
