#include "tessera/core/layout/partial_state_layout.h"

#include <algorithm>

namespace tessera::internal {

PartialStateLayout::PartialStateLayout(const std::vector<Segment>& segments, int64_t numel,
                                       const std::function<bool(size_t parameter)>& has) {
  const auto keep = [this](int64_t begin, int64_t end) {
    if (begin == end) return;
    if (!runs_.empty() && runs_.back().range.end() == begin) {
      runs_.back().range.numel += end - begin;
    } else {
      runs_.push_back({{begin, end - begin}, numel_});
    }
    numel_ += end - begin;
  };
  if (segments.empty()) keep(0, numel);
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t begin = i == 0 ? 0 : segments[i].buffer_offset;
    const int64_t end = i + 1 < segments.size() ? segments[i + 1].buffer_offset : numel;
    if (has(segments[i].parameter)) keep(begin, end);
  }
}

int64_t PartialStateLayout::find(int64_t at) const {
  const auto after =
      std::upper_bound(runs_.begin(), runs_.end(), at,
                       [](int64_t value, const Run& run) { return value < run.range.begin; });
  if (after == runs_.begin()) return -1;
  const Run& run = *(after - 1);
  return at < run.range.end() ? run.offset + at - run.range.begin : -1;
}

}  // namespace tessera::internal
