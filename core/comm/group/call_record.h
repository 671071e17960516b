#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "tessera/collective.h"
#include "tessera/core/comm/groups/call_tag.h"

namespace tessera::internal {

/// What a rank calls, as the ranks compare it. Plain bytes, which peers read.
struct CallRecord {
  int64_t sequence = -1;  ///< its number in the group; -1 of a message
  CallSignature signature;
  int32_t slice = -1;  ///< which slice of a reduce_scatter comes to this rank; may differ
  CallTag<128> tag;

  CallRecord() = default;
  CallRecord(const Collective& call, int64_t number);

  bool is_same_call(const CallRecord& other) const {
    return sequence == other.sequence && signature == other.signature && tag == other.tag;
  }
  /// "all_reduce SUM float32[1024] 'bucket 3'".
  std::string text() const { return describe(signature, tag.shown()); }
};
static_assert(std::is_trivially_copyable_v<CallRecord>);

}  // namespace tessera::internal
