#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/tools/checkpoint/commands.h"
#include "tessera/tools/checkpoint/progress_bar.h"
#include "tessera/tools/checkpoint/step_files.h"

namespace tessera::internal {

namespace {

std::string text_of(const EntryForm& form) {
  return absl::StrCat(std::string(dtype_name(form.dtype)), "[", absl::StrJoin(form.sizes, ", "),
                      "] with strides [", absl::StrJoin(form.strides, ", "), "]");
}

/// How many elements of an entry differ between two steps, and the number of the first.
struct Differences {
  int64_t count = 0;
  int64_t first = -1;
};

/// Compares entry `name`, which must have the same form in both steps.
absl::StatusOr<Differences> differences_of(StepReader& a, StepReader& b, const std::string& name,
                                           ProgressBar& progress) {
  const auto width = static_cast<size_t>(a.manifest().entries.at(name).form.element_bytes());
  Differences differences;
  std::vector<char> other;
  const absl::Status status =
      for_each_chunk(a, name, [&](int64_t first, absl::Span<char> bytes) -> absl::Status {
        other.resize(bytes.size());
        absl::Status read = b.read(name, first, absl::MakeSpan(other));
        if (!read.ok()) return read;
        progress.add(static_cast<int64_t>(bytes.size()));
        if (std::memcmp(bytes.data(), other.data(), bytes.size()) == 0) return read;
        for (size_t i = 0; i < bytes.size(); i += width) {
          if (std::memcmp(bytes.data() + i, other.data() + i, width) == 0) continue;
          if (differences.count++ == 0) differences.first = first + static_cast<int64_t>(i / width);
        }
        return read;
      });
  if (!status.ok()) return status;
  return differences;
}

}  // namespace

absl::StatusOr<bool> compare_steps(FileSystem& files, const std::string& path,
                                   const std::string& other, std::FILE* out) {
  const auto a = open_step(files, path);
  if (!a.ok()) return a.status();
  const auto b = open_step(files, other);
  if (!b.ok()) return b.status();
  const auto& ours = (*a)->manifest().entries;
  const auto& theirs = (*b)->manifest().entries;
  int64_t bytes = 0;
  std::set<std::string> names;
  for (const auto& [name, entry] : ours) {
    names.insert(name);
    bytes += entry.form.numel() * entry.form.element_bytes();
  }
  for (const auto& [name, entry] : theirs) names.insert(name);
  ProgressBar progress("comparing", bytes);
  int64_t different = 0;
  for (const std::string& name : names) {
    const auto in_a = ours.find(name);
    const auto in_b = theirs.find(name);
    std::string text;
    if (in_b == theirs.end() || in_a == ours.end()) {
      text = absl::StrCat("only in ", in_b == theirs.end() ? path : other);
    } else if (in_a->second.form != in_b->second.form) {
      text = absl::StrCat(text_of(in_a->second.form), " and ", text_of(in_b->second.form));
    } else {
      const auto found = differences_of(**a, **b, name, progress);
      if (!found.ok()) return found.status();
      if (found->count == 0) continue;
      text = absl::StrCat(found->count, " of ", in_a->second.form.numel(),
                          " elements differ, the first is number ", found->first, " in memory");
    }
    ++different;
    std::fprintf(out, "%s: %s\n", printable(name).c_str(), text.c_str());
  }
  std::fprintf(out, "%ld of %zu entries differ\n", different, names.size());
  return different == 0;
}

}  // namespace tessera::internal
