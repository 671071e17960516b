#include "tessera/core/layout/strides.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace tessera::internal {

namespace {

bool is_dense(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  if (strides.size() != sizes.size()) return false;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return true;
    if (sizes[d] > 1) dimensions.emplace_back(strides[d], sizes[d]);
  }
  std::sort(dimensions.begin(), dimensions.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : dimensions) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace

std::string strides_problem(const std::vector<int64_t>& sizes,
                            const std::vector<int64_t>& strides) {
  if (std::any_of(sizes.begin(), sizes.end(), [](int64_t size) { return size < 0; })) {
    return absl::StrCat("got sizes [", absl::StrJoin(sizes, ", "), "], expected none below 0");
  }
  if (!is_dense(sizes, strides)) {
    return absl::StrCat("got strides [", absl::StrJoin(strides, ", "), "] for sizes [",
                        absl::StrJoin(sizes, ", "), "]", ", expected dense ones without overlap");
  }
  return "";
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t stride = 1;
  for (size_t d = sizes.size(); d > 0; --d) {
    strides[d - 1] = stride;
    stride *= std::max<int64_t>(sizes[d - 1], 1);
  }
  return strides;
}

}  // namespace tessera::internal
