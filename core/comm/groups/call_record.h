#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "tessera/collective.h"

namespace tessera::internal {

/// Returns a hash of `tag`, the same in all processes.
uint64_t hash_of_tag(std::string_view tag);

/// A call's tag, in the form that ranks compare and error texts show: its hash, its length and its
/// first kBytes bytes. Plain bytes, which may come from another process.
template <size_t kBytes>
struct CallTag {
  uint64_t hash = 0;
  uint32_t length = 0;
  char text[kBytes] = {};

  void set(std::string_view tag) {
    hash = hash_of_tag(tag);
    length = static_cast<uint32_t>(tag.size());
    tag.copy(text, kBytes);
  }

  /// Returns the first kBytes bytes of the tag.
  std::string_view beginning() const { return {text, std::min<size_t>(length, kBytes)}; }
  /// Returns beginning(), with "..." after it if the tag is longer.
  std::string shown() const {
    std::string shown(beginning());
    if (shown.size() < length) shown += "...";
    return shown;
  }

  friend bool operator==(const CallTag& a, const CallTag& b) {
    return a.hash == b.hash && a.length == b.length && a.beginning() == b.beginning();
  }
};

/// A call in the form that ranks compare. Plain bytes, which peers read.
struct CallRecord {
  int64_t sequence = -1;  ///< its number in the group; -1 for a message
  CallSignature signature;
  int32_t slice = -1;  ///< this rank's slice of a reduce_scatter; differs between ranks
  CallTag<128> tag;

  CallRecord() = default;
  CallRecord(const Collective& call, int64_t number);

  bool is_same_call(const CallRecord& other) const {
    return sequence == other.sequence && signature == other.signature && tag == other.tag;
  }
  /// Copies what is_same_call() and text() read, and leaves the unused end of the tag's text alone.
  void copy_to(CallRecord& other) const;
  /// Returns "all_reduce SUM float32[1024] 'bucket 3'".
  std::string text() const { return describe(signature, tag.shown()); }
};
static_assert(std::is_trivially_copyable_v<CallRecord>);

/// Returns true if a message that was sent as `sent` has the dtype and numel that `received`
/// expects.
bool fits(const CallSignature& sent, const CallSignature& received);

/// Returns "rank 1 called recv float32[3] from rank 0 'x' where rank 0 called send int64[3] to rank
/// 1 'x'".
std::string message_mismatch(const std::string& receiver, const CallSignature& received,
                             const std::string& sender, const CallSignature& sent,
                             std::string_view tag);

/// Returns "rank 0 gives rank 1 3 elements where rank 1 expects 4 from rank 0, in all_to_all 'x'".
std::string count_mismatch(const std::string& giver, int64_t given, const std::string& taker,
                           int64_t expected, std::string_view tag);

/// Returns "rank 1 and rank 0 both asked for slice 0 of reduce_scatter SUM float32[8] 'x'; the
/// ranks' slices must be a permutation".
std::string slice_mismatch(const std::string& rank, const std::string& other, int slice,
                           const std::string& call);

}  // namespace tessera::internal
