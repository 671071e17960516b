#include "tessera/core/layout/read_only_memory.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <fstream>
#include <string_view>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/core/layout/readable.h"

namespace tessera::internal {

bool have_same_bits(const at::Tensor& left, const at::Tensor& right) {
  const at::Tensor a = left.contiguous(), b = right.contiguous();
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

ReadOnlyMemory::ReadOnlyMemory() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    // "<begin>-<end> r--p ...". Ubuntu 22.04's Abseil has no absl::SimpleHexAtoi.
    Range range{};
    const char* const end = line.data() + line.size();
    const auto begin_read = std::from_chars(line.data(), end, range.begin, 16);
    if (begin_read.ec != std::errc() || begin_read.ptr == end || *begin_read.ptr != '-') continue;
    const auto end_read = std::from_chars(begin_read.ptr + 1, end, range.end, 16);
    if (end_read.ec != std::errc()) continue;
    const std::string_view rest(end_read.ptr, static_cast<size_t>(end - end_read.ptr));
    if (rest.starts_with(" r-")) ranges_.push_back(range);
  }
}

bool ReadOnlyMemory::holds(const at::Tensor& tensor) const {
  if (!tensor.is_cpu() || tensor.layout() != at::kStrided || tensor.numel() == 0 ||
      !reading_problem(tensor).empty()) {
    return false;
  }
  const auto begin = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
  const uint64_t end = begin + static_cast<uint64_t>(extent_numel(tensor)) * tensor.element_size();
  const auto next =
      std::upper_bound(ranges_.begin(), ranges_.end(), begin,
                       [](uint64_t at, const Range& range) { return at < range.end; });
  return next != ranges_.end() && next->begin < end;
}

std::string ReadOnlyMemory::problem(const at::Tensor& tensor, const at::Tensor& values) const {
  if (!holds(tensor) || have_same_bits(tensor, values)) return "";
  return "lies in memory that this process may not write (a constant of the program or a map of a "
         "file that is only read) and would have to take other values; clone() it before "
         "parallelize, or, if it is a buffer, name it in Options::ignores_buffers";
}

}  // namespace tessera::internal
