#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/comm/shm/page_map.h"
#include "tessera/core/comm/shm/segment.h"
#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"
#include "tessera/shared_buffer.h"

namespace tessera::internal::shm {

/// One segment of the first rank, mapped twice by every rank: shared, and private (copy on write).
///
/// Note [Proof of sharing]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// Ranks can share one copy only if the system shows which pages of a private mapping were copied
/// because this rank wrote them. Otherwise a write by mistake would permanently detach a page of
/// one rank, and later steps would not notice. So every rank tests it when the buffer is made: it
/// writes a byte through its view, checks that the page of that byte and no other is shown as
/// copied, drops the copy and checks that it sees the common memory again. If the test fails on any
/// rank, no rank shares.
class SharedBuffer final : public tessera::SharedBuffer {
 public:
  /// Collective over `group`, whose ranks are on one host; blocking. `bytes` zero bytes. If the
  /// first rank has no space, or another cannot map them, all ranks throw c10::Error that names it.
  /// Null on all ranks if a rank has no proof, or cannot map a view; the first one warns with the
  /// reason, once per process.
  static std::unique_ptr<SharedBuffer> make(ProcessGroup& group, int64_t bytes,
                                            std::string_view name);

  /// In a child of fork() they all throw c10::Error.
  at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  std::optional<int64_t> find_own_write() override;
  void drop_own_writes() override;

 private:
  SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<char> view, int rank);

  /// Throws c10::Error unless the view and its page map are what Note [Proof of sharing] asks for.
  void try_own_write();
  void require_own_process() const;
  int64_t pages() const { return segment_->room_bytes() / PageMap::page_bytes(); }
  /// As PageMap::next_copied(), of the view.
  int64_t next_copied(int64_t page) const;
  void drop(int64_t page, int64_t count) const;

  const Origin origin_;
  const int rank_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<char> view_;  // this rank's private mapping of the segment
  const PageMap page_map_;
};

}  // namespace tessera::internal::shm
