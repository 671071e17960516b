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
/// Reads see what the owner wrote before any collective that both ranks have taken part in since.
/// The caller must ensure that nobody reads while the owner writes (epochs, fences). A window keeps
/// the buffers readable: after its group is gone, or after an owner has destroyed its window, reads
/// still work and return what the owner's memory held last, until every rank has destroyed its
/// window. Where ranks share memory this holds even if the owner's process has ended, and reads do
/// not check for dead peers; the collectives around them do. Over mpi the owner's process answers
/// reads (while it computes). When that process ends, it waits until the other ranks have destroyed
/// their windows. If it leaves without waiting, reads throw an error that names it. Thread-safe:
/// several threads of a rank may read at once.
class Window {
 public:
  /// The version of values that may change between two reads.
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
  /// before the first wait cost one round trip. Until then nobody else may use `to`'s memory; the
  /// Work keeps it alive, and so does a transfer that continues after a failure. `tag` names the
  /// unit in errors and traces. `version`, if given, says that reads of one range at this version
  /// find equal values on every rank at any time, so that the ranks of a host may share one read.
  /// Throws c10::Error for a rank, range or tensor that the window does not have. The call or
  /// wait() throws CommError (op "read", no sequence) if the group or its world has failed (even
  /// after the group is destroyed), or if the owner has left or does not answer within the group's
  /// time-out.
  virtual std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                           std::string_view tag = {},
                                           int64_t version = kUnversioned) = 0;

  /// Local; windows of int64 only. Load word `index` of rank `rank`'s buffer with acquire order,
  /// and store to word `index` of this rank's own with release order: a rank that loads a stored
  /// value also sees, in its reads, what the storing rank wrote before. Where ranks share memory
  /// they do not block and do not check for failures of the group; elsewhere a load from another
  /// rank is one round trip, and throws as a read does (op "load").
  virtual int64_t load(int rank, int64_t index) const = 0;
  virtual void store(int64_t index, int64_t value) = 0;

 protected:
  Window() = default;
};

/// Throws c10::Error unless `own` may become a rank's buffer of a window. Every backend begins with
/// this.
void check_window(const at::Tensor& own, std::string_view name);

/// Throws c10::Error unless `to` may be read from element `begin` on of rank `rank`'s buffer of
/// `numel` elements of `dtype`, in a window of `size` ranks.
void check_read(int rank, int64_t begin, const at::Tensor& to, int size, int64_t numel,
                at::ScalarType dtype);

/// Throws c10::Error that begins with `op` ("load", "store") unless a window of `size` ranks and
/// `numel` elements of `dtype` has a word `index` of rank `rank`.
void check_word(const char* op, int rank, int64_t index, int size, int64_t numel,
                at::ScalarType dtype);

/// Returns the word at `address`, which other threads and processes may store meanwhile.
int64_t load_word(const void* address);
void store_word(void* address, int64_t value);

}  // namespace tessera
