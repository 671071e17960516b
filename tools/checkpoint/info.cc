#include <cstdint>
#include <string>
#include <variant>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/tools/checkpoint/commands.h"
#include "tessera/tools/checkpoint/step_files.h"

namespace tessera::internal {

namespace {

std::string text_of(const Extra& extra) {
  if (const auto* number = std::get_if<int64_t>(&extra)) return absl::StrCat(*number);
  if (const auto* number = std::get_if<double>(&extra)) return absl::StrCat(*number);
  return absl::StrCat("'", printable(std::get<std::string>(extra)), "'");
}

double mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

absl::Status print_info(FileSystem& files, const std::string& path, std::FILE* out) {
  const auto reader = open_step(files, path);
  if (!reader.ok()) return reader.status();
  const Manifest& manifest = (*reader)->manifest();
  int64_t bytes = 0;
  for (const ManifestFile& file : manifest.files) bytes += file.bytes;
  std::fprintf(out, "%s\n", (*reader)->path().c_str());
  std::fprintf(out, "step %ld, saved by %ld rank%s, degrees %s, %.1f MiB in %zu file%s\n",
               manifest.step, manifest.world, manifest.world == 1 ? "" : "s",
               absl::StrJoin(manifest.degrees, ",").c_str(), mib(bytes), manifest.files.size(),
               manifest.files.size() == 1 ? "" : "s");
  for (const auto& [name, text] : manifest.options) {
    std::fprintf(out, "note   %s = '%s'\n", printable(name).c_str(), printable(text).c_str());
  }
  for (const auto& [name, value] : manifest.extras) {
    std::fprintf(out, "value  %s = %s\n", printable(name).c_str(), text_of(value).c_str());
  }
  for (const auto& [name, entry] : manifest.entries) {
    std::fprintf(out, "tensor %s %s[%s]%s\n", printable(name).c_str(),
                 std::string(dtype_name(entry.form.dtype)).c_str(),
                 absl::StrJoin(entry.form.sizes, ", ").c_str(),
                 entry.form.is_row_major() ? "" : ", not row-major");
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
