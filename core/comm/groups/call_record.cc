#include "tessera/core/comm/groups/call_record.h"

#include <cstring>

#include <absl/strings/str_cat.h>
#include <xxhash.h>

namespace tessera::internal {

uint64_t hash_of_tag(std::string_view tag) { return XXH3_64bits(tag.data(), tag.size()); }

CallRecord::CallRecord(const Collective& call, int64_t number)
    : sequence(number), signature(call.signature()), slice(call.slice) {
  tag.set(call.tag);
}

void CallRecord::copy_to(CallRecord& other) const {
  const size_t used = offsetof(CallRecord, tag) + offsetof(decltype(tag), text);
  std::memcpy(static_cast<void*>(&other), this, used + tag.beginning().size());
}

bool fits(const CallSignature& sent, const CallSignature& received) {
  return sent.dtype == received.dtype && sent.numel == received.numel;
}

std::string message_mismatch(const std::string& receiver, const CallSignature& received,
                             const std::string& sender, const CallSignature& sent,
                             std::string_view tag) {
  return absl::StrCat(receiver, " called ", describe(received, tag), " where ", sender, " called ",
                      describe(sent, tag));
}

std::string count_mismatch(const std::string& giver, int64_t given, const std::string& taker,
                           int64_t expected, std::string_view tag) {
  return absl::StrCat(giver, " gives ", taker, " ", given, " elements where ", taker, " expects ",
                      expected, " from ", giver, ", in all_to_all '", std::string(tag), "'");
}

std::string slice_mismatch(const std::string& rank, const std::string& other, int slice,
                           const std::string& call) {
  return absl::StrCat(rank, " and ", other, " both asked for slice ", slice, " of ", call,
                      "; the ranks' slices must be a permutation");
}

}  // namespace tessera::internal
