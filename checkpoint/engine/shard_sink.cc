#include "tessera/checkpoint/engine/shard_sink.h"

#include <string_view>
#include <utility>

#include "tessera/core/layout/readable.h"
#include "tessera/core/process/progress_report.h"

namespace tessera::internal {

namespace {

EntryForm form_of(const at::Tensor& tensor) {
  return {.sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .dtype = tensor.scalar_type()};
}

std::string_view view_of(const at::Tensor& values) {
  return {static_cast<const char*>(values.const_data_ptr()), values.nbytes()};
}

}  // namespace

EntryForm form_of(const StateEntry& entry) {
  return {.sizes = entry.sizes, .strides = entry.strides, .dtype = entry.dtype};
}

ShardSink::ShardSink(FileSystem& files, std::string directory, ShardIdentity identity,
                     std::map<std::string, at::Tensor> own)
    : files_(files), directory_(std::move(directory)), identity_(std::move(identity)) {
  for (auto& [name, tensor] : own) own_[name] = in_memory(tensor.detach()).cpu().contiguous();
}

void ShardSink::begin(const std::vector<StateOutline>& entries) { status_ = create(entries); }

absl::Status ShardSink::create(const std::vector<StateOutline>& entries) {
  std::vector<ShardPiece> pieces;
  for (const StateOutline& entry : entries) {
    names_.push_back(entry.name);
    const EntryForm form = form_of(entry.form);
    for (const Range& range : entry.ranges) {
      pieces.push_back({entry.name, form, range.begin, range.end()});
    }
    // An entry without elements has no ranges; rank 0 records that it exists.
    if (identity_.rank == 0 && entry.form.numel() == 0) pieces.push_back({entry.name, form, 0, 0});
  }
  for (const auto& [name, tensor] : own_) {
    pieces.push_back({name, form_of(tensor), 0, tensor.numel()});
  }
  absl::StatusOr<ShardLayout> layout = ShardLayout::make(identity_, std::move(pieces));
  if (!layout.ok()) return layout.status();
  for (const ShardPiece& piece : layout->pieces()) {
    if (piece.begin < piece.end) pieces_.push_back(piece);
  }
  auto writer = ShardWriter::create(files_, directory_, *std::move(layout));
  if (!writer.ok()) return writer.status();
  writer_ = *std::move(writer);
  return absl::OkStatus();
}

/// Writes this rank's own tensors that precede element `begin` of `entry` in the file. If `entry`
/// is null, writes all remaining own tensors.
absl::Status ShardSink::add_own_before(const std::string* entry, int64_t begin) {
  while (next_ < pieces_.size()) {
    const ShardPiece& piece = pieces_[next_];
    if (entry != nullptr && piece.entry == *entry && piece.begin == begin) break;
    const auto own = own_.find(piece.entry);
    if (own == own_.end()) return absl::InternalError("[checkpoint] a piece out of order");
    if (absl::Status status = writer_->add(piece.entry, 0, view_of(own->second)); !status.ok()) {
      return status;
    }
    ++next_;
  }
  return absl::OkStatus();
}

void ShardSink::write(size_t entry, int64_t begin, const at::Tensor& values) {
  report_life();
  if (status_.ok()) status_ = add_own_before(&names_[entry], begin);
  if (status_.ok()) status_ = writer_->add(names_[entry], begin, view_of(values));
  ++next_;
}

absl::StatusOr<ShardSummary> ShardSink::finish() {
  if (status_.ok()) status_ = add_own_before(nullptr, 0);
  if (!status_.ok()) return status_;
  return writer_->finish();
}

}  // namespace tessera::internal
