#include "tessera/checkpoint/format/safetensors.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/json.h"

namespace tessera::internal {
namespace {

constexpr const char* kMetadata = "__metadata__";

/// Reads a tensor's description in the header; sets `problem` if it is malformed.
SafetensorsTensor read_tensor(const std::string& name, const Json& json, std::string& problem) {
  JsonFields fields(json, absl::StrCat("tensor '", printable(name), "'"), problem);
  SafetensorsTensor tensor;
  tensor.name = name;
  const std::string dtype = fields.text("dtype");
  tensor.shape = fields.integers("shape", 0, INT64_MAX);
  const std::vector<int64_t> offsets = fields.integers("data_offsets", 0, INT64_MAX);
  fields.expect_no_others();
  if (!problem.empty()) return tensor;
  const auto known = dtype_of(dtype);
  if (!known) {
    problem = absl::StrCat("tensor '", printable(name), "': got dtype '", printable(dtype),
                           "', expected one that LibTorch has, in safetensors' names (F32, ...)");
  } else if (offsets.size() != 2) {
    problem = absl::StrCat("tensor '", printable(name), "': got ", offsets.size(),
                           " data_offsets, expected 2");
  } else {
    tensor.dtype = *known;
    tensor.begin = offsets[0];
    tensor.end = offsets[1];
  }
  return tensor;
}

}  // namespace

/// Returns what is malformed in `tensors`, which must be in the order of their data; "" if nothing.
std::string SafetensorsHeader::problem() const {
  int64_t end = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto bytes = bytes_of(tensor.shape, tensor.dtype);
    if (!bytes) {
      return absl::StrCat("tensor '", printable(tensor.name), "': got shape [",
                          absl::StrJoin(tensor.shape, ", "), "], expected fewer than 2^63 bytes");
    }
    if (tensor.begin != end || tensor.end < tensor.begin) {
      return absl::StrCat("tensor '", printable(tensor.name), "': got data_offsets ", tensor.begin,
                          " to ", tensor.end, ", expected them to begin at ", end,
                          ", where the tensor before it ends");
    }
    if (tensor.end - tensor.begin != *bytes) {
      return absl::StrCat("tensor '", printable(tensor.name), "': got ", tensor.end - tensor.begin,
                          " bytes of data, expected ", *bytes, " for its shape and dtype");
    }
    end = tensor.end;
  }
  return "";
}

absl::StatusOr<std::string> SafetensorsHeader::to_bytes() const {
  if (const std::string wrong = problem(); !wrong.empty()) return absl::InvalidArgumentError(wrong);
  Json json = Json::object();
  if (!metadata.empty()) json[kMetadata] = metadata;
  for (const SafetensorsTensor& tensor : tensors) {
    const std::string_view dtype = dtype_name(tensor.dtype);
    Json description = {
        {"dtype", dtype}, {"shape", tensor.shape}, {"data_offsets", {tensor.begin, tensor.end}}};
    if (tensor.name == kMetadata || !json.emplace(tensor.name, std::move(description)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("got a second tensor '", printable(tensor.name), "', expected one"));
    }
  }
  auto text = json_text(json);
  if (!text.ok()) return text.status();
  const auto unaligned = static_cast<int64_t>(text->size() + kLengthBytes) % kAlignment;
  if (unaligned != 0) text->append(static_cast<size_t>(kAlignment - unaligned), ' ');
  const uint64_t length = text->size();
  if (length > static_cast<uint64_t>(kMaxJsonBytes)) {
    return absl::InvalidArgumentError(absl::StrCat("got a header of ", length,
                                                   " bytes, expected at most ", kMaxJsonBytes,
                                                   "; save with more ranks or fewer tensors"));
  }
  char bytes[kLengthBytes];
  std::memcpy(bytes, &length, sizeof(bytes));
  return text->insert(0, bytes, sizeof(bytes));
}

absl::StatusOr<int64_t> SafetensorsHeader::json_bytes(std::string_view first_bytes,
                                                      int64_t file_bytes) {
  if (static_cast<int64_t>(first_bytes.size()) < kLengthBytes || file_bytes < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "got a file of ", file_bytes, " bytes, expected at least ", kLengthBytes,
        " with the length of the header; it was truncated, or is no safetensors file"));
  }
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), sizeof(length));
  const auto fits = [file_bytes](uint64_t bytes) {
    return bytes <= static_cast<uint64_t>(kMaxJsonBytes) &&
           bytes <= static_cast<uint64_t>(file_bytes - kLengthBytes);
  };
  if (fits(length)) return static_cast<int64_t>(length);
  return absl::InvalidArgumentError(
      absl::StrCat("got a header of ", length, " bytes in a file of ", file_bytes,
                   " bytes, expected at most ", kMaxJsonBytes, " and no more than the file has; ",
                   fits(__builtin_bswap64(length))
                       ? "the length has its bytes in the opposite order (big-endian)"
                       : "it was truncated, or is no safetensors file"));
}

absl::StatusOr<SafetensorsHeader> SafetensorsHeader::from_json(std::string_view json,
                                                               int64_t data_bytes) {
  if (json.empty() || json.front() != '{') {
    return absl::InvalidArgumentError(absl::StrCat("got a header that begins with '",
                                                   printable(json.substr(0, 8)),
                                                   "', expected '{'; it is no safetensors file"));
  }
  const auto parsed = parse_json(json);
  if (!parsed.ok()) return parsed.status();
  SafetensorsHeader header;
  std::string problem;
  for (const auto& [name, value] : parsed->items()) {
    if (name != kMetadata) {
      header.tensors.push_back(read_tensor(name, value, problem));
    } else if (!value.is_object()) {
      problem = absl::StrCat("got ", describe(value), " as __metadata__, expected an object");
    } else {
      for (const auto& [key, text] : value.items()) {
        if (text.is_string()) {
          header.metadata[key] = text.get<std::string>();
        } else if (problem.empty()) {
          problem = absl::StrCat("__metadata__, '", printable(key), "': got ", describe(text),
                                 ", expected a text");
        }
      }
    }
    if (!problem.empty()) return absl::InvalidArgumentError(problem);
  }
  std::ranges::sort(header.tensors, {}, [](const SafetensorsTensor& tensor) {
    return std::tie(tensor.begin, tensor.end, tensor.name);
  });
  problem = header.problem();
  if (problem.empty() && header.data_bytes() != data_bytes) {
    problem = absl::StrCat("got ", data_bytes, " bytes of data, expected ", header.data_bytes(),
                           ", where the last tensor ends; the file was truncated or extended");
  }
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  return header;
}

}  // namespace tessera::internal
