#include "tessera/checkpoint/format/entry_form.h"

#include <algorithm>

#include <absl/algorithm/container.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/checkpoint/format/utf8.h"
#include "tessera/core/layout/strides.h"

namespace tessera::internal {
namespace {

constexpr size_t kMaxNameBytes = 1000;
constexpr size_t kMaxDimensions = 64;

bool looks_like_a_piece(std::string_view name) {
  const size_t mark = name.rfind('#');
  if (mark == std::string_view::npos) return false;
  const std::string_view range = name.substr(mark + 1);
  const size_t dash = range.find('-');
  if (dash == std::string_view::npos || dash == 0 || dash + 1 == range.size()) return false;
  return absl::c_all_of(range.substr(0, dash), absl::ascii_isdigit) &&
         absl::c_all_of(range.substr(dash + 1), absl::ascii_isdigit);
}

/// Returns true if `text`, which is UTF-8, has a control character of ASCII or Latin-1 (U+0080 to
/// U+009F, which terminals obey).
bool has_control_characters(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (absl::ascii_iscntrl(byte)) return true;
    if (byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0) {
      return true;
    }
  }
  return false;
}

}  // namespace

std::optional<int64_t> bytes_of(const std::vector<int64_t>& sizes, at::ScalarType dtype) {
  auto bytes = dtype_bytes(dtype);
  bool is_empty = false;
  for (const int64_t size : sizes) {
    // A size of 0 counts as 1 in this product, so that sizes that overflow are refused even if
    // another size is 0.
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return std::nullopt;
    }
    is_empty = is_empty || size == 0;
  }
  return is_empty ? 0 : bytes;
}

int64_t EntryForm::numel() const {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return numel;
}

int64_t EntryForm::element_bytes() const { return dtype_bytes(dtype); }

bool EntryForm::is_row_major() const {
  int64_t expected = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    if (sizes[d] != 1 && strides[d] != expected) return numel() == 0;
    expected *= sizes[d];
  }
  return true;
}

std::string EntryForm::problem() const {
  if (dtype_name(dtype).empty()) {
    return absl::StrCat("got dtype ", c10::toString(dtype),
                        ", expected one that safetensors has a name for");
  }
  if (sizes.size() > kMaxDimensions) {
    return absl::StrCat("got ", sizes.size(), " dimensions, expected at most ", kMaxDimensions);
  }
  if (!bytes_of(sizes, dtype)) {
    return absl::StrCat("got sizes [", absl::StrJoin(sizes, ", "),
                        "], expected none below 0 and fewer than 2^63 bytes");
  }
  return strides_problem(sizes, strides);
}

std::string name_problem(std::string_view name) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::StrCat("got a name of ", name.size(), " bytes ('", printable(name),
                        "'), expected 1 to ", kMaxNameBytes);
  }
  if (!utf8_problem(name).empty() || has_control_characters(name)) {
    return absl::StrCat("got the name '", printable(name),
                        "', expected UTF-8 without control characters");
  }
  if (name == "__metadata__" || looks_like_a_piece(name)) {
    return absl::StrCat("got the name '", printable(name),
                        "', expected one that is neither __metadata__ nor ",
                        "ends as the name of a piece does (#<number>-<number>)");
  }
  return "";
}

std::string piece_name(std::string_view name, int64_t begin, int64_t end) {
  return absl::StrCat(std::string(name), "#", begin, "-", end);
}

}  // namespace tessera::internal
