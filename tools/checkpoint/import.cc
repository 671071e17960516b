#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/directory/run_directory.h"
#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/checkpoint/step/tensor_file.h"
#include "tessera/core/layout/strides.h"
#include "tessera/tools/checkpoint/commands.h"
#include "tessera/tools/checkpoint/progress_bar.h"
#include "tessera/tools/checkpoint/step_files.h"

namespace tessera::internal {

namespace {

constexpr int64_t kStep = 0;

/// Where the values of an entry are.
struct Origin {
  const TensorFile* file;
  const SafetensorsTensor* tensor;
};

std::map<std::string, Origin> origins_in(const std::vector<TensorFile>& files) {
  std::map<std::string, Origin> origins;
  for (const TensorFile& file : files) {
    for (const SafetensorsTensor& tensor : file.header().tensors) {
      origins[absl::StrCat("model.", tensor.name)] = {&file, &tensor};
    }
  }
  return origins;
}

/// Returns the layout of a shard with all tensors; an error if two tensors have the same name,
/// which ShardLayout::make() refuses.
absl::StatusOr<ShardLayout> layout_of(const std::vector<TensorFile>& files,
                                      const std::string& nonce) {
  std::vector<ShardPiece> pieces;
  for (const TensorFile& file : files) {
    for (const SafetensorsTensor& tensor : file.header().tensors) {
      EntryForm form{
          .sizes = tensor.shape, .strides = row_major_strides(tensor.shape), .dtype = tensor.dtype};
      const int64_t numel = form.numel();
      pieces.push_back({.entry = absl::StrCat("model.", tensor.name),
                        .form = std::move(form),
                        .begin = 0,
                        .end = numel});
    }
  }
  return ShardLayout::make({.nonce = nonce, .step = kStep, .rank = 0, .world = 1},
                           std::move(pieces));
}

absl::Status copy_values(const Origin& from, const ShardPiece& piece, ShardWriter& writer,
                         ProgressBar& progress) {
  const int64_t width = piece.form.element_bytes();
  std::vector<char> chunk;
  for (int64_t begin = 0; begin < piece.end; begin += kChunkBytes / width) {
    chunk.resize(static_cast<size_t>(std::min(kChunkBytes / width, piece.end - begin) * width));
    absl::Status status = from.file->read(*from.tensor, begin * width, absl::MakeSpan(chunk));
    if (status.ok()) status = writer.add(piece.entry, begin, {chunk.data(), chunk.size()});
    if (!status.ok()) return status;
    progress.add(static_cast<int64_t>(chunk.size()));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardSummary> write_shard(FileSystem& files, const std::string& directory,
                                         const std::vector<TensorFile>& from,
                                         const ShardLayout& layout) {
  const std::map<std::string, Origin> origins = origins_in(from);
  auto writer = ShardWriter::create(files, directory, layout);
  if (!writer.ok()) return writer.status();
  ProgressBar progress("importing", layout.file_bytes());
  for (const ShardPiece& piece : layout.pieces()) {
    absl::Status status = copy_values(origins.at(piece.entry), piece, **writer, progress);
    if (!status.ok()) return status;
  }
  return (*writer)->finish();
}

absl::Status commit(FileSystem& files, const std::string& directory, const std::string& origin,
                    const std::string& nonce, ShardSummary summary) {
  Manifest head;
  head.nonce = nonce;
  head.step = kStep;
  head.world = 1;
  head.degrees = {1, 1, 1};
  head.options = {{"imported", origin}};
  auto manifest = make_manifest(std::move(head), {std::move(summary)});
  if (!manifest.ok()) return manifest.status();
  return commit_step(files, directory, *manifest);
}

}  // namespace

absl::Status import_model(FileSystem& files, const std::string& from, const std::string& directory,
                          std::FILE* out) {
  const auto opened = TensorFile::open_all(files, from);
  if (!opened.ok()) return opened.status();
  // Locking the directory truncates its lock file, so `from` must not be that file.
  std::error_code error;
  if (std::filesystem::equivalent(from, join_path(directory, kLockName), error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", from, "': got the lock of the run, expected a safetensors file"));
  }
  const std::string nonce = draw_nonce();
  auto layout = layout_of(*opened, nonce);
  if (!layout.ok()) return layout.status();
  const auto run = RunDirectory::open(files, directory, holder_of_this_process());
  if (!run.ok()) return run.status();
  const auto steps = list_steps(files, directory);
  if (!steps.ok()) return steps.status();
  if (!steps->empty()) {
    return absl::AlreadyExistsError(absl::StrCat("'", directory, "': got steps of a run up to ",
                                                 steps->back(), ", expected none; import into a ",
                                                 "directory of its own"));
  }
  const auto path = begin_step(files, directory, kStep, nonce);
  if (!path.ok()) return path.status();
  auto summary = write_shard(files, *path, *opened, *layout);
  absl::Status status =
      summary.ok() ? commit(files, directory, from, nonce, *std::move(summary)) : summary.status();
  if (!status.ok()) {
    (void)abandon_step(files, directory, kStep, nonce);  // commit() may have removed it
    return status;
  }
  std::fprintf(out, "%s: the model in %s\n", join_path(directory, step_name(kStep)).c_str(),
               from.c_str());
  return status;
}

}  // namespace tessera::internal
