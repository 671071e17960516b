#include "tessera/core/comm/hosts/call_record.h"

#include <algorithm>
#include <cstring>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_mismatch.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {
namespace {

constexpr const char* kTag = "calls";

/// The same memory as the value that lies there: bytes of shared memory have no type of their own.
template <typename T>
T value_at(const at::Tensor& bytes, int64_t begin) {
  T value;
  std::memcpy(&value, data_of(bytes) + begin, sizeof(T));
  return value;
}

[[noreturn]] void differ(int rank, const CallRecord& call, int other_rank,
                         const CallRecord& other) {
  throw CommError({}, absl::StrCat("rank ", rank, " called ", call.text(), " where rank ",
                                   other_rank, " called ", other.text()));
}

void check_slices(const std::vector<int>& slices, const CallRecord& call) {
  for (size_t rank = 1; rank < slices.size(); ++rank) {
    const auto end = slices.begin() + static_cast<std::ptrdiff_t>(rank);
    const auto other = std::find(slices.begin(), end, slices[rank]);
    if (other == end) continue;
    throw CommError({}, slice_mismatch(absl::StrCat("rank ", rank),
                                       absl::StrCat("rank ", other - slices.begin()), slices[rank],
                                       call.text()));
  }
}

}  // namespace

CallRecord::CallRecord(const CallSignature& call, int own_slice, std::string_view text)
    : signature(call), slice(own_slice), tag(text) {}

bool CallRecord::is_same_call(const CallRecord& other) const {
  return signature == other.signature && tag == other.tag;
}

std::string CallRecord::text() const { return describe(signature, tag.shown()); }

std::vector<int> compare_calls(const Levels& levels, const CallRecord& own) {
  const HostLayout& layout = levels.layout;
  const int locals = levels.locals();
  constexpr auto kRecord = static_cast<int64_t>(sizeof(CallRecord));
  constexpr auto kSlice = static_cast<int64_t>(sizeof(int32_t));

  const at::Tensor inside = levels.scratch(kRecord * locals, at::kByte);
  const at::Tensor own_place = part_of(inside, kRecord * levels.local(), kRecord);
  std::memcpy(data_of(own_place), &own, sizeof(own));
  levels.inside->all_gather(inside, own_place, kTag)->wait();
  const auto first = value_at<CallRecord>(inside, 0);
  for (int local = 1; local < locals; ++local) {
    const auto call = value_at<CallRecord>(inside, kRecord * local);
    if (call.is_same_call(first)) continue;
    differ(layout.rank_of(levels.host(), local), call, layout.rank_of(levels.host(), 0), first);
  }

  const int64_t of_host = kRecord + kSlice * locals;
  const at::Tensor across = levels.scratch(of_host * levels.hosts(), at::kByte);
  const at::Tensor own_host = part_of(across, of_host * levels.host(), of_host);
  std::memcpy(data_of(own_host), &first, sizeof(first));
  for (int local = 0; local < locals; ++local) {
    const int32_t slice = value_at<CallRecord>(inside, kRecord * local).slice;
    std::memcpy(data_of(own_host) + kRecord + kSlice * local, &slice, sizeof(slice));
  }
  levels.calls->all_gather(across, own_host, kTag)->wait();
  const auto of_rank_0 = value_at<CallRecord>(across, 0);
  std::vector<int> slices(static_cast<size_t>(layout.ranks()));
  for (int host = 0; host < levels.hosts(); ++host) {
    const auto call = value_at<CallRecord>(across, of_host * host);
    if (!call.is_same_call(of_rank_0)) differ(layout.rank_of(host, 0), call, 0, of_rank_0);
    for (int local = 0; local < locals; ++local) {
      slices[static_cast<size_t>(layout.rank_of(host, local))] =
          value_at<int32_t>(across, of_host * host + kRecord + kSlice * local);
    }
  }
  if (of_rank_0.signature.op == Op::kReduceScatter) check_slices(slices, of_rank_0);
  return slices;
}

}  // namespace tessera::internal::hosts
