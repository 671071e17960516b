#include "tessera/checkpoint/step/shard_layout.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/json.h"
#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {
namespace {

constexpr const char* kNonceKey = "tessera.nonce";
constexpr const char* kStepKey = "tessera.step";
constexpr const char* kRankKey = "tessera.rank";
constexpr const char* kWorldKey = "tessera.world";
constexpr const char* kEntriesKey = "tessera.entries";

std::string piece_problem(const ShardPiece& piece) {
  std::string wrong = name_problem(piece.entry);
  if (wrong.empty()) wrong = piece.form.problem();
  if (!wrong.empty()) return wrong;
  const int64_t numel = piece.form.numel();
  const bool is_empty = numel == 0 && piece.begin == 0 && piece.end == 0;
  if (is_empty || (0 <= piece.begin && piece.begin < piece.end && piece.end <= numel)) return "";
  return absl::StrCat("got elements ", piece.begin, " to ", piece.end,
                      ", expected one or more of 0 to ", numel);
}

}  // namespace

std::string ShardPiece::tensor_name() const {
  return is_whole() && form.is_row_major() ? entry : piece_name(entry, begin, end);
}

std::vector<int64_t> ShardPiece::tensor_shape() const {
  if (is_whole() && form.is_row_major()) return form.sizes;
  return {end - begin};
}

absl::StatusOr<ShardLayout> ShardLayout::make(ShardIdentity identity,
                                              std::vector<ShardPiece> pieces) {
  ShardLayout layout;
  std::map<std::string, EntryForm> forms;
  for (const ShardPiece& piece : pieces) {
    std::string wrong = piece_problem(piece);
    if (wrong.empty() && forms.try_emplace(piece.entry, piece.form).first->second != piece.form) {
      wrong = "got two pieces of different sizes, strides or dtypes, expected the same";
    }
    if (!wrong.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("[checkpoint] entry '", printable(piece.entry), "': ", wrong));
    }
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const ShardPiece& left, const ShardPiece& right) {
                     return left.form.element_bytes() > right.form.element_bytes();
                   });
  SafetensorsHeader header{.metadata = shard_metadata(identity, forms), .tensors = {}};
  int64_t end = 0;
  for (const ShardPiece& piece : pieces) {
    const int64_t begin = end;
    if (__builtin_add_overflow(end, (piece.end - piece.begin) * piece.form.element_bytes(), &end)) {
      return absl::InvalidArgumentError("[checkpoint] got more than 2^63 bytes for one rank");
    }
    header.tensors.push_back({.name = piece.tensor_name(),
                              .dtype = piece.form.dtype,
                              .shape = piece.tensor_shape(),
                              .begin = begin,
                              .end = end});
  }
  auto bytes = header.to_bytes();
  if (!bytes.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("[checkpoint] rank ", identity.rank, ": ", bytes.status().message()));
  }
  layout.header_ = *std::move(bytes);
  layout.file_bytes_ = static_cast<int64_t>(layout.header_.size()) + end;
  layout.identity_ = std::move(identity);
  layout.pieces_ = std::move(pieces);
  return layout;
}

std::map<std::string, ManifestEntry> ShardLayout::entries() const {
  std::map<std::string, ManifestEntry> entries;
  auto offset = static_cast<int64_t>(header_.size());
  for (const ShardPiece& piece : pieces_) {
    ManifestEntry& entry = entries[piece.entry];
    entry.form = piece.form;
    if (piece.begin == piece.end) continue;
    entry.pieces.push_back({piece.begin, piece.end, identity_.rank, offset});
    offset += (piece.end - piece.begin) * piece.form.element_bytes();
  }
  for (auto& [name, entry] : entries) {
    std::sort(entry.pieces.begin(), entry.pieces.end(),
              [](const ManifestPiece& a, const ManifestPiece& b) { return a.begin < b.begin; });
  }
  return entries;
}

std::map<std::string, std::string> shard_metadata(const ShardIdentity& identity,
                                                  const std::map<std::string, EntryForm>& forms) {
  Json entries = Json::object();
  for (const auto& [name, form] : forms) {
    entries[name] = {{"sizes", form.sizes}, {"strides", form.strides}};
  }
  return {{kNonceKey, identity.nonce},
          {kStepKey, absl::StrCat(identity.step)},
          {kRankKey, absl::StrCat(identity.rank)},
          {kWorldKey, absl::StrCat(identity.world)},
          {kEntriesKey, entries.dump()}};
}

std::string shard_problem(const SafetensorsHeader& header, int64_t header_bytes,
                          const Manifest& manifest, int64_t rank) {
  const ShardIdentity identity{
      .nonce = manifest.nonce, .step = manifest.step, .rank = rank, .world = manifest.world};
  for (const auto& [key, expected] : shard_metadata(identity, {})) {
    if (key == kEntriesKey) continue;  // not compared: it is for readers without a manifest
    const auto found = header.metadata.find(key);
    const std::string got = found == header.metadata.end() ? "nothing" : found->second;
    if (got == expected) continue;
    return absl::StrCat("got '", printable(got), "' as ", key, ", expected '", expected,
                        "' as in the manifest; the file belongs to another save");
  }
  std::map<std::string, const SafetensorsTensor*> tensors;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != tensor.end) tensors[tensor.name] = &tensor;
  }
  for (const auto& [name, entry] : manifest.entries) {
    for (const ManifestPiece& placed : entry.pieces) {
      if (placed.file != rank) continue;
      const ShardPiece piece{name, entry.form, placed.begin, placed.end};
      const auto found = tensors.find(piece.tensor_name());
      if (found == tensors.end()) {
        return absl::StrCat("got no tensor '", piece.tensor_name(), "', expected it as the ",
                            "manifest says; the file belongs to another save");
      }
      const SafetensorsTensor& tensor = *found->second;
      if (tensor.dtype != entry.form.dtype || tensor.shape != piece.tensor_shape() ||
          header_bytes + tensor.begin != placed.offset) {
        return absl::StrCat("tensor '", tensor.name, "': got another dtype, shape or place, ",
                            "expected what the manifest says; the file belongs to another save");
      }
      tensors.erase(found);
    }
  }
  if (tensors.empty()) return "";
  return absl::StrCat("got a tensor '", printable(tensors.begin()->first),
                      "', expected none that the manifest does not have; the file belongs to ",
                      "another save");
}

}  // namespace tessera::internal
