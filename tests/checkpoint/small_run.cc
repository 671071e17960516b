#include "tessera/tests/checkpoint/small_run.h"

#include <algorithm>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"

namespace tessera::internal::testing {

std::map<std::string, EntryForm> SmallRun::forms() const {
  return {{"model.weight", {{5, 7}, {7, 1}, at::kFloat}},
          {"model.transposed", {{4, 3}, {1, 4}, at::kFloat}},
          {"model.bias", {{7}, {1}, at::kBFloat16}},
          {"engine.steps", {{}, {}, at::kLong}},
          {"model.empty", {{0, 3}, {3, 1}, at::kDouble}},
          {"model.flag", {{1}, {1}, at::kBool}}};
}

std::string SmallRun::values(const std::string& name, const EntryForm& form, int64_t step) {
  std::string bytes(static_cast<size_t>(form.numel() * form.element_bytes()), '\0');
  uint64_t state = std::hash<std::string>()(name) + static_cast<uint64_t>(step);
  for (char& byte : bytes) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    byte = static_cast<char>(state >> 56);
  }
  if (form.dtype == at::kBool) std::fill(bytes.begin(), bytes.end(), static_cast<char>(step % 2));
  return bytes;
}

std::vector<ShardPiece> SmallRun::pieces(int64_t rank) const {
  std::vector<ShardPiece> pieces;
  for (const auto& [name, form] : forms()) {
    const int64_t numel = form.numel();
    const bool is_split = form.dtype == at::kFloat;
    const int64_t begin = is_split ? numel * rank / world : 0;
    const int64_t end = is_split ? numel * (rank + 1) / world : rank == 0 ? numel : 0;
    if (begin < end || (numel == 0 && rank == 0)) pieces.push_back({name, form, begin, end});
  }
  return pieces;
}

Manifest SmallRun::head(int64_t step) const {
  return {.nonce = nonce,
          .step = step,
          .world = world,
          .degrees = {1, 1, world},
          .options = {{"strategy", "zero1"}},
          .extras = {{"epoch", step / 10}, {"loss", 0.1}, {"note", "ünïcode"}},
          .files = {},
          .entries = {}};
}

std::string SmallRun::path_of(int64_t step) const { return join_path(directory, step_name(step)); }

absl::StatusOr<ShardSummary> SmallRun::write_rank(FileSystem& files, const std::string& path,
                                                  int64_t step, int64_t rank) const {
  auto layout = ShardLayout::make({nonce, step, rank, world}, pieces(rank));
  if (!layout.ok()) return layout.status();
  const std::vector<ShardPiece> placed = layout->pieces();
  auto writer = ShardWriter::create(files, path, *std::move(layout));
  if (!writer.ok()) return writer.status();
  for (const ShardPiece& piece : placed) {
    const std::string bytes = values(piece.entry, piece.form, step);
    const auto element = static_cast<size_t>(piece.form.element_bytes());
    const auto begin = static_cast<size_t>(piece.begin), end = static_cast<size_t>(piece.end);
    const std::string_view part =
        std::string_view(bytes).substr(begin * element, (end - begin) * element);
    if (absl::Status status = (*writer)->add(piece.entry, piece.begin, part); !status.ok()) {
      return status;
    }
  }
  return (*writer)->finish();
}

absl::Status SmallRun::save(FileSystem& files, int64_t step) const {
  const auto path = begin_step(files, directory, step, nonce);
  if (!path.ok()) return path.status();
  std::vector<ShardSummary> summaries;
  for (int64_t rank = 0; rank < world; ++rank) {
    auto summary = write_rank(files, *path, step, rank);
    if (!summary.ok()) {
      (void)abandon_step(files, directory, step, nonce);
      return summary.status();
    }
    summaries.push_back(*std::move(summary));
  }
  const auto manifest = make_manifest(head(step), std::move(summaries));
  if (!manifest.ok()) return manifest.status();
  return commit_step(files, directory, *manifest);
}

std::string wrong_values(StepReader& reader, const SmallRun& run) {
  const Manifest& manifest = reader.manifest();
  const auto forms = run.forms();
  if (manifest.entries.size() != forms.size()) return "other entries";
  if (manifest.extras != run.head(manifest.step).extras) return "other extras";
  for (const auto& [name, form] : forms) {
    const std::string expected = SmallRun::values(name, form, manifest.step);
    std::string got(expected.size(), '\0');
    absl::Status status = reader.read(name, 0, absl::MakeSpan(got));
    if (!status.ok()) return std::string(status.message());
    if (got != expected) return absl::StrCat("other values of ", name);
  }
  return "";
}

}  // namespace tessera::internal::testing
