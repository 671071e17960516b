#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/comm/shm/page_map.h"
#include "tessera/core/comm/shm/segment.h"
#include "tessera/process_group.h"
#include "tessera/shared_buffer.h"

namespace tessera::internal::shm {

/// One segment of the first rank, mapped twice by every rank: shared, and private (copy on write).
///
/// Note [Proof of sharing]
/// ~~~~~~~~~~~~~~~~~~~~~~~
/// Ranks can share one copy only if two conditions hold that no standard guarantees: a private
/// mapping shows what others write to the file (unspecified in POSIX, true on Linux), and the
/// system shows which pages of it were copied because this rank wrote them. Without the second, a
/// write by mistake would permanently detach a page of one rank, and later steps would not notice.
/// So every rank tests both when the buffer is made: it writes a byte through its view, checks that
/// the page of that byte and no other is shown as copied, drops the copy and checks that it sees
/// the common memory again. If the test fails on any rank, no rank shares.
class SharedBuffer final : public tessera::SharedBuffer {
 public:
  using OpenPageMap = std::function<std::unique_ptr<PageMap>()>;

  /// Collective over `group`, whose ranks are on one host; blocking. `bytes` zero bytes. If the
  /// first rank has no space, or another cannot map them, all ranks throw c10::Error that names it.
  /// Null on all ranks if a rank has no proof, or its limits of private memory leave less than
  /// twice as much as its view takes; the first one warns with the reason, once per process.
  static std::unique_ptr<SharedBuffer> make(ProcessGroup& group, int64_t bytes,
                                            std::string_view name,
                                            const OpenPageMap& open_page_map = &PageMap::open);

  /// In a child of fork() they all throw c10::Error.
  at::Tensor common(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  at::Tensor view(int64_t offset_bytes, int64_t numel, at::ScalarType dtype) override;
  std::optional<int64_t> find_own_write() override;
  void drop_own_writes() override;

 private:
  /// This rank's private mapping of a segment.
  class View;

  SharedBuffer(std::shared_ptr<Segment> segment, std::shared_ptr<View> view, int rank);

  /// "" if the view and its page map are what Note [Proof of sharing] asks for.
  std::string try_own_write();
  void require_own_process() const;

  const Origin origin_;
  const int rank_;
  const std::shared_ptr<Segment> segment_;
  const std::shared_ptr<View> view_;
  std::unique_ptr<PageMap> page_map_;  // null until it is opened
};

}  // namespace tessera::internal::shm
