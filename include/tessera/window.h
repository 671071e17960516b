#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/work.h"

namespace tessera {

/// One buffer of each rank of a group, which every rank may read at any time without the owner
/// taking part (one-sided). Made by ProcessGroup::make_window.
///
/// A read sees what the owner wrote before a collective if both ranks have since taken part in that
/// collective. The caller must ensure that nobody reads while the owner writes (epochs, fences).
/// The buffers stay readable until every rank has destroyed its window, even after the group is
/// gone or the owner has destroyed its own window; reads then return what the owner's memory held
/// last. Where ranks share memory this holds even if the owner's process has ended, and reads do
/// not check for dead peers; the collectives before and after the reads do. Over MPI the owner's
/// process answers reads, also while it computes. Before that process ends, it waits until the
/// other ranks have destroyed their windows. If it ends without waiting, reads throw an error that
/// names the owner. Thread-safe: several threads of a rank may read at once.
class Window {
 public:
  /// The `version` of a read whose values may change before another rank reads the same range.
  static constexpr int64_t kUnversioned = -1;

  virtual ~Window() = default;
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  /// Calls start_read(), and waits.
  void read(int rank, int64_t begin, const at::Tensor& to, std::string_view tag = {},
            int64_t version = kUnversioned) {
    start_read(rank, begin, to, tag, version)->wait();
  }

  /// Local. Copies elements [begin, begin + to.numel()) of rank `rank`'s buffer into `to` (1-d,
  /// contiguous, on the CPU, of the window's dtype; its memory may lie anywhere). If ranks share
  /// memory, the copy is made in the call, else before Work::wait() returns: several reads started
  /// before the first wait cost one round trip. Until wait() has returned nobody else may use
  /// `to`'s memory; the Work keeps it alive, and so does a transfer that continues after a failure.
  /// `tag` names the unit in errors and traces. A `version` other than kUnversioned promises that
  /// all reads of one range with that version find equal values, whichever rank reads and when, so
  /// that the ranks of a host may share one read. Throws c10::Error if the window has no such rank
  /// or range, or if `to` is not as described. The call or wait() throws CommError (op "read", no
  /// sequence) if the group or its world has failed (even after the group is destroyed), or if the
  /// owner has left or does not answer within the group's time-out.
  virtual std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                           std::string_view tag = {},
                                           int64_t version = kUnversioned) = 0;

  /// Local; for windows of int64 only. load() reads word `index` of rank `rank`'s buffer with
  /// acquire order; store() writes word `index` of this rank's own buffer with release order. So a
  /// rank that loads a stored value also sees, in its reads, what the storing rank wrote before the
  /// store. If ranks share memory, load() and store() do not block and do not check for failures of
  /// the group. If not, a load from another rank is one round trip, and throws what a read throws
  /// (op "load").
  virtual int64_t load(int rank, int64_t index) const = 0;
  virtual void store(int64_t index, int64_t value) = 0;

 protected:
  Window() = default;
};

/// Throws c10::Error unless a rank may give the buffer `own` to a window. Every backend's
/// make_window() calls this first.
void check_window(const at::Tensor& own, std::string_view name);

/// Throws c10::Error unless `to` can receive elements [begin, begin + to.numel()) of rank `rank`'s
/// buffer, in a window of `size` ranks whose buffers have `numel` elements of `dtype`.
void check_read(int rank, int64_t begin, const at::Tensor& to, int size, int64_t numel,
                at::ScalarType dtype);

/// Throws c10::Error that names `op` ("load" or "store") unless a window of `size` ranks and
/// `numel` elements of `dtype` has a word `index` of rank `rank`.
void check_word(const char* op, int rank, int64_t index, int size, int64_t numel,
                at::ScalarType dtype);

/// Load and store the word at `address`, with acquire and release order; other threads and
/// processes may access the word at the same time.
int64_t load_word(const void* address);
void store_word(void* address, int64_t value);

}  // namespace tessera
