#include "tessera/checkpoint/format/manifest_json.h"

#include <cmath>
#include <limits>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/dtype_names.h"

namespace tessera::internal {
namespace {

// The field for NaN or infinity, which JSON numbers cannot express.
constexpr const char* kDouble = "double";

ManifestEntry read_entry(const std::string& name, const Json& json, std::string& problem) {
  const std::string where = absl::StrCat("entry '", printable(name), "'");
  JsonFields fields(json, where, problem);
  ManifestEntry entry;
  entry.form.sizes = fields.integers("sizes", 0, INT64_MAX);
  entry.form.strides = fields.integers("strides", 0, INT64_MAX);
  const std::string dtype = fields.text("dtype");
  const Json& pieces = fields.array("pieces");
  fields.expect_no_others();
  if (!problem.empty()) return entry;
  const auto known = dtype_of(dtype);
  if (!known) {
    problem = absl::StrCat(where, ": got dtype '", printable(dtype),
                           "', expected one of safetensors' names (F32, ...)");
    return entry;
  }
  entry.form.dtype = *known;
  for (const Json& piece : pieces) {
    const auto is_place = [](const Json& one) { return is_integer_within(one, 0, INT64_MAX); };
    if (!piece.is_array() || piece.size() != 4 || !absl::c_all_of(piece, is_place)) {
      problem = absl::StrCat(where, ": got ", describe(piece),
                             " as a piece, expected [begin, end, file, offset]");
      return entry;
    }
    entry.pieces.push_back({.begin = piece[0].get<int64_t>(),
                            .end = piece[1].get<int64_t>(),
                            .file = piece[2].get<int64_t>(),
                            .offset = piece[3].get<int64_t>()});
  }
  return entry;
}

}  // namespace

Json to_json(const ManifestFile& file) {
  return {
      {"name", file.name}, {"bytes", file.bytes}, {"checksums", pack_checksums(file.checksums)}};
}

Json to_json(const std::map<std::string, ManifestEntry>& entries) {
  Json json = Json::object();
  for (const auto& [name, entry] : entries) {
    Json pieces = Json::array();
    for (const ManifestPiece& piece : entry.pieces) {
      pieces.push_back({piece.begin, piece.end, piece.file, piece.offset});
    }
    json[name] = {{"sizes", entry.form.sizes},
                  {"strides", entry.form.strides},
                  {"dtype", dtype_name(entry.form.dtype)},
                  {"pieces", std::move(pieces)}};
  }
  return json;
}

Json to_json(const Extra& extra) {
  const auto* const number = std::get_if<double>(&extra);
  if (number == nullptr || std::isfinite(*number)) {
    return std::visit([](const auto& value) { return Json(value); }, extra);
  }
  return {{kDouble, std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf"}};
}

ManifestFile read_file(const Json& json, std::string& problem) {
  JsonFields fields(json, "a file", problem);
  ManifestFile file;
  file.name = fields.text("name");
  file.bytes = fields.integer("bytes", 0, INT64_MAX);
  const std::string checksums = fields.text("checksums");
  fields.expect_no_others();
  if (!problem.empty()) return file;
  auto unpacked = unpack_checksums(checksums);
  if (unpacked) {
    file.checksums = *std::move(unpacked);
  } else {
    problem = absl::StrCat("file '", printable(file.name), "': got checksums '",
                           printable(checksums), "', expected base64 of 8 bytes each");
  }
  return file;
}

std::map<std::string, ManifestEntry> read_entries(const Json& json, std::string& problem) {
  std::map<std::string, ManifestEntry> entries;
  for (const auto& [name, value] : json.items()) {
    entries.emplace(name, read_entry(name, value, problem));
    if (!problem.empty()) break;
  }
  return entries;
}

Extra read_extra(const std::string& name, const Json& json, std::string& problem) {
  if (json.is_string()) return json.get<std::string>();
  if (is_integer_within(json, INT64_MIN, INT64_MAX)) return json.get<int64_t>();
  if (json.is_number_float()) return json.get<double>();
  if (json.is_object() && json.size() == 1 && json.contains(kDouble)) {
    if (json[kDouble] == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (json[kDouble] == "inf") return std::numeric_limits<double>::infinity();
    if (json[kDouble] == "-inf") return -std::numeric_limits<double>::infinity();
  }
  if (problem.empty()) {
    problem = absl::StrCat("extra '", printable(name), "': got ", describe(json),
                           ", expected a number or a text");
  }
  return int64_t{0};
}

}  // namespace tessera::internal
