// Finds what makes a manifest inconsistent.
#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/files/file_operations.h"
#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/manifest.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/format/utf8.h"

namespace tessera::internal {
namespace {

/// Collects problems, up to kMost.
class Problems {
 public:
  void add(std::string text) {
    if (is_enough()) return;
    texts_.push_back(std::move(text));
  }
  bool is_enough() const { return texts_.size() >= kMost; }
  bool is_empty() const { return texts_.empty(); }
  std::string text() const { return absl::StrJoin(texts_, "\n"); }

 private:
  static constexpr size_t kMost = 8;
  std::vector<std::string> texts_;
};

/// Bytes of a file that hold elements.
struct Extent {
  int64_t begin;
  int64_t end;
};

void check_head(const Manifest& manifest, Problems& problems) {
  if (!is_nonce(manifest.nonce)) {
    problems.add(absl::StrCat("got nonce '", printable(manifest.nonce),
                              "', expected 32 hexadecimal digits"));
  }
  if (manifest.step < 0) {
    problems.add(absl::StrCat("got step ", manifest.step, ", expected none below 0"));
  }
  if (manifest.world < 1 || manifest.world > kMaxRanks) {
    problems.add(
        absl::StrCat("got a world of ", manifest.world, " ranks, expected 1 to ", kMaxRanks));
  } else if (manifest.files.size() != static_cast<size_t>(manifest.world)) {
    problems.add(absl::StrCat("got ", manifest.files.size(), " files, expected one for each of ",
                              manifest.world, " ranks"));
  }
  for (const int64_t degree : manifest.degrees) {
    if (degree >= 1 && manifest.world % degree == 0) continue;
    problems.add(absl::StrCat("got degree ", degree, ", expected a divisor of the world's size, ",
                              manifest.world));
  }
}

void check_files(const Manifest& manifest, Problems& problems) {
  for (size_t i = 0; i < manifest.files.size() && !problems.is_enough(); ++i) {
    const ManifestFile& file = manifest.files[i];
    const std::string expected = rank_file_name(static_cast<int64_t>(i), manifest.world);
    if (file.name != expected) {
      problems.add(
          absl::StrCat("got file '", printable(file.name), "', expected '", expected, "'"));
    }
    if (file.bytes < SafetensorsHeader::kLengthBytes ||
        static_cast<int64_t>(file.checksums.size()) != blocks_of(file.bytes)) {
      problems.add(absl::StrCat("file '", printable(file.name), "': got ", file.bytes,
                                " bytes and checksums of ", file.checksums.size(),
                                " blocks, expected one for each ", kBlockBytes, " bytes"));
    }
  }
}

/// Checks that the pieces of one entry cover it; adds the pieces' extents to `extents`, by file.
void check_entry(const std::string& name, const ManifestEntry& entry, const Manifest& manifest,
                 std::vector<std::vector<Extent>>& extents, Problems& problems) {
  std::string wrong = name_problem(name);
  if (wrong.empty()) wrong = entry.form.problem();
  if (!wrong.empty()) {
    problems.add(absl::StrCat("entry '", printable(name), "': ", wrong));
    return;
  }
  const int64_t numel = entry.form.numel(), element_bytes = entry.form.element_bytes();
  int64_t covered = 0;
  for (const ManifestPiece& piece : entry.pieces) {
    if (piece.begin != covered || piece.end <= piece.begin || piece.end > numel) {
      const char* const fault = piece.begin < covered ? "twice" : "not at all";
      problems.add(absl::StrCat("entry '", name, "': got a piece of elements ", piece.begin, " to ",
                                piece.end, " after element ", covered, " of ", numel,
                                ", expected every element once; element ",
                                std::min(piece.begin, covered), " is there ", fault));
      return;
    }
    covered = piece.end;
    const auto files = static_cast<int64_t>(manifest.files.size());
    if (piece.file < 0 || piece.file >= files) {
      problems.add(absl::StrCat("entry '", name, "': got file ", piece.file, " of ", files));
      return;
    }
    const int64_t bytes = (piece.end - piece.begin) * element_bytes;
    const int64_t file_bytes = manifest.files[static_cast<size_t>(piece.file)].bytes;
    if (piece.offset < 0 || bytes > file_bytes || piece.offset > file_bytes - bytes ||
        piece.offset % element_bytes != 0) {
      problems.add(absl::StrCat("entry '", name, "': got ", bytes, " bytes at ", piece.offset,
                                " of a file of ", file_bytes,
                                ", expected them within it, at a multiple of ", element_bytes));
      return;
    }
    extents[static_cast<size_t>(piece.file)].push_back({piece.offset, piece.offset + bytes});
  }
  if (covered != numel) {
    problems.add(absl::StrCat("entry '", name, "': got elements up to ", covered, ", expected all ",
                              numel, "; the rest is in no file"));
  }
}

/// Checks that the extents in a file follow one another without gaps, up to its end.
void check_extents(const ManifestFile& file, std::vector<Extent>& extents, Problems& problems) {
  std::ranges::sort(extents, {}, &Extent::begin);
  int64_t end = extents.empty() ? file.bytes : extents.front().begin;
  for (const Extent& extent : extents) {
    if (extent.begin != end) {
      problems.add(absl::StrCat("file '", file.name, "': got elements at byte ", extent.begin,
                                ", expected them at ", end, ", where those before them end"));
      return;
    }
    end = extent.end;
  }
  if (end != file.bytes) {
    problems.add(absl::StrCat("file '", file.name, "': got elements up to byte ", end,
                              ", expected them to fill it up to ", file.bytes));
  }
}

void check_texts(const Manifest& manifest, Problems& problems) {
  const auto check = [&](const std::string& name, const std::string* text) {
    std::string wrong = name_problem(name);
    if (wrong.empty() && text != nullptr) wrong = utf8_problem(*text);
    if (!wrong.empty()) problems.add(absl::StrCat("'", printable(name), "': ", wrong));
  };
  for (const auto& [name, text] : manifest.options) check(name, &text);
  for (const auto& [name, extra] : manifest.extras) check(name, std::get_if<std::string>(&extra));
}

}  // namespace

std::string Manifest::problem() const {
  Problems problems;
  check_head(*this, problems);
  check_texts(*this, problems);
  if (!problems.is_empty()) return problems.text();
  check_files(*this, problems);
  std::vector<std::vector<Extent>> extents(files.size());
  for (const auto& [name, entry] : entries) {
    if (problems.is_enough()) break;
    check_entry(name, entry, *this, extents, problems);
  }
  if (!problems.is_empty()) return problems.text();
  for (size_t i = 0; i < files.size(); ++i) check_extents(files[i], extents[i], problems);
  return problems.text();
}

}  // namespace tessera::internal
