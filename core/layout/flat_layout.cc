#include "tessera/flat_layout.h"

#include <algorithm>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/core/numbers/round_up.h"

namespace tessera {
using namespace internal;

namespace {

constexpr int64_t kBlockNumel = 64;
constexpr int64_t kAlignmentBytes = 256;

}  // namespace

int64_t FlatLayout::alignment_numel(c10::ScalarType dtype) {
  return std::max<int64_t>(kBlockNumel,
                           kAlignmentBytes / static_cast<int64_t>(c10::elementSize(dtype)));
}

FlatLayout::FlatLayout(c10::ScalarType dtype, std::vector<int64_t> parameter_numels, int slices)
    : dtype_(dtype), slices_(slices), numels_(std::move(parameter_numels)) {
  TORCH_CHECK(slices >= 1, "[layout] slices: got ", slices, ", expected at least 1");
  const int64_t alignment = alignment_numel(dtype);
  offsets_.reserve(numels_.size());
  int64_t offset = 0;
  for (int64_t numel : numels_) {
    TORCH_CHECK(numel >= 0, "[layout] parameter size: got ", numel, ", expected at least 0");
    offsets_.push_back(offset);
    offset += round_up(numel, alignment);
  }
  numel_ = round_up(offset, slices * alignment);
}

int64_t FlatLayout::bytes() const {
  return numel_ * static_cast<int64_t>(c10::elementSize(dtype_));
}

int64_t FlatLayout::slice_bytes() const { return bytes() / slices_; }

Range FlatLayout::part(int index, int count) const {
  TORCH_CHECK(count >= 1 && slices_ % count == 0, "[layout] parts: got ", count,
              ", expected a divisor of the ", slices_, " slices");
  TORCH_CHECK(index >= 0 && index < count, "[layout] slice: got ", index, ", expected one of 0 to ",
              count - 1);
  return {index * (numel_ / count), numel_ / count};
}

std::vector<Segment> FlatLayout::segments(Range range) const {
  TORCH_CHECK(range.begin >= 0 && range.numel >= 0 && range.end() <= numel_, "[layout] range: got ",
              range.begin, " to ", range.end(), ", expected a part of 0 to ", numel_);
  TORCH_CHECK(range.begin % alignment_numel(dtype_) == 0, "[layout] range: got begin ", range.begin,
              ", expected a multiple of ", alignment_numel(dtype_));
  std::vector<Segment> segments;
  // The last parameter that starts at or before the range may reach into it; earlier ones cannot.
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), range.begin);
  size_t index = static_cast<size_t>(after - offsets_.begin());
  // An empty parameter has the offset of the next one, so it never hides a parameter that reaches
  // into the range.
  if (index > 0) --index;
  for (; index < offsets_.size() && offsets_[index] < range.end(); ++index) {
    const int64_t begin = std::max(offsets_[index], range.begin);
    const int64_t end = std::min(offsets_[index] + numels_[index], range.end());
    if (begin < end) {
      segments.push_back({.parameter = index,
                          .buffer_offset = begin,
                          .parameter_offset = begin - offsets_[index],
                          .numel = end - begin});
    }
  }
  return segments;
}

}  // namespace tessera
