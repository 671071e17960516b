#include "tessera/checkpoint/step/shard_writer.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/manifest_json.h"
#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {

absl::StatusOr<std::string> ShardSummary::to_text() const {
  return json_text({{"nonce", nonce},
                    {"step", step},
                    {"rank", rank},
                    {"file", to_json(file)},
                    {"entries", to_json(entries)}});
}

absl::StatusOr<ShardSummary> ShardSummary::from_text(std::string_view text) {
  const auto json = parse_json(text, {.depth = 5});
  if (!json.ok()) return json.status();
  std::string problem;
  JsonFields fields(*json, "the summary of a rank", problem);
  ShardSummary summary;
  summary.nonce = fields.text("nonce");
  summary.step = fields.integer("step", 0, INT64_MAX);
  summary.rank = fields.integer("rank", 0, kMaxRanks - 1);
  const Json& file = fields.object("file");
  const Json& entries = fields.object("entries");
  fields.expect_no_others();
  if (problem.empty()) summary.file = read_file(file, problem);
  if (problem.empty()) summary.entries = read_entries(entries, problem);
  if (!problem.empty()) return absl::InvalidArgumentError(problem);
  return summary;
}

ShardWriter::ShardWriter(ShardLayout layout, std::unique_ptr<WritableFile> file)
    : layout_(std::move(layout)), file_(std::move(file)) {
  block_.reserve(static_cast<size_t>(std::min(kBlockBytes, layout_.file_bytes())));
  begin_piece(0);
}

void ShardWriter::begin_piece(size_t piece) {
  const std::vector<ShardPiece>& pieces = layout_.pieces();
  // Entries without elements have no values to wait for.
  while (piece < pieces.size() && pieces[piece].begin == pieces[piece].end) ++piece;
  piece_ = piece;
  next_ = piece < pieces.size() ? pieces[piece].begin : 0;
}

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::create(FileSystem& files,
                                                                 const std::string& directory,
                                                                 ShardLayout layout) {
  const std::string name = rank_file_name(layout.identity().rank, layout.identity().world);
  auto file = files.create(join_path(directory, name));
  if (!file.ok()) return file.status();
  std::unique_ptr<ShardWriter> writer(new ShardWriter(std::move(layout), *std::move(file)));
  if (absl::Status status = writer->put(writer->layout_.header()); !status.ok()) return status;
  return writer;
}

absl::Status ShardWriter::check_next(std::string_view entry, int64_t begin,
                                     std::string_view bytes) const {
  const std::vector<ShardPiece>& pieces = layout_.pieces();
  const auto given = [&] {
    return absl::StrCat("[checkpoint] got values of '", printable(entry), "' from element ", begin,
                        " on (", bytes.size(), " bytes), expected ");
  };
  if (piece_ == pieces.size()) {
    return absl::InvalidArgumentError(absl::StrCat(given(), "none: all pieces are written"));
  }
  const ShardPiece& piece = pieces[piece_];
  const int64_t rest_bytes = (piece.end - next_) * piece.form.element_bytes();
  if (entry == piece.entry && begin == next_ && static_cast<int64_t>(bytes.size()) <= rest_bytes &&
      static_cast<int64_t>(bytes.size()) % piece.form.element_bytes() == 0) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(given(), "whole elements of '", piece.entry,
                                                 "' from ", next_, " on, at most ", rest_bytes,
                                                 " bytes; give pieces in the layout's order"));
}

absl::Status ShardWriter::add(std::string_view entry, int64_t begin, std::string_view bytes) {
  if (!status_.ok()) return status_;
  if (bytes.empty()) return absl::OkStatus();
  status_ = check_next(entry, begin, bytes);
  if (!status_.ok()) return status_;
  const ShardPiece& piece = layout_.pieces()[piece_];
  next_ += static_cast<int64_t>(bytes.size()) / piece.form.element_bytes();
  if (next_ == piece.end) begin_piece(piece_ + 1);
  return put(bytes);
}

absl::Status ShardWriter::put(std::string_view bytes) {
  constexpr auto kBlock = static_cast<size_t>(kBlockBytes);
  while (!bytes.empty() && status_.ok()) {
    const size_t count = std::min(bytes.size(), kBlock - block_.size());
    const std::string_view part = bytes.substr(0, count);
    bytes.remove_prefix(count);
    if (count == kBlock) {  // a whole block, without a copy
      status_ = write_block(part);
      continue;
    }
    block_.append(part);
    if (block_.size() < kBlock) continue;
    status_ = write_block(block_);
    block_.clear();
  }
  return status_;
}

absl::Status ShardWriter::write_block(std::string_view block) {
  checksums_.push_back(checksum_of(block));
  return file_->write_all(block);
}

absl::StatusOr<ShardSummary> ShardWriter::finish() {
  const std::vector<ShardPiece>& pieces = layout_.pieces();
  if (status_.ok() && piece_ < pieces.size()) {
    status_ = absl::InvalidArgumentError(
        absl::StrCat("[checkpoint] got no values of '", pieces[piece_].entry, "' from element ",
                     next_, " on, expected all ", pieces.size(), " pieces before finish()"));
  }
  if (status_.ok() && !block_.empty()) status_ = write_block(block_);
  if (status_.ok()) status_ = file_->sync();
  if (status_.ok()) status_ = file_->close();
  if (!status_.ok()) return status_;
  const ShardIdentity& identity = layout_.identity();
  ShardSummary summary{.nonce = identity.nonce,
                       .step = identity.step,
                       .rank = identity.rank,
                       .file = {.name = rank_file_name(identity.rank, identity.world),
                                .bytes = layout_.file_bytes(),
                                .checksums = checksums_},
                       .entries = layout_.entries()};
  status_ = absl::FailedPreconditionError("[checkpoint] the file is finished");
  return summary;
}

}  // namespace tessera::internal
