#include "tessera/checkpoint/engine/staged_state.h"

#include <ATen/ops/from_blob.h>

#include "tessera/core/memory/copy_kernels.h"
#include "tessera/core/memory/private_memory.h"

namespace tessera::internal {

namespace {

int64_t bytes_of(const std::vector<StateOutline>& entries) {
  int64_t bytes = 0;
  for (const StateOutline& entry : entries) {
    const auto width = static_cast<int64_t>(c10::elementSize(entry.form.dtype));
    for (const Range& range : entry.ranges) bytes += (range.end() - range.begin) * width;
  }
  return bytes;
}

}  // namespace

void StagedState::begin(const std::vector<StateOutline>& entries) {
  entries_ = entries;
  pieces_.clear();
  used_ = 0;
  const int64_t bytes = bytes_of(entries);
  if (buffer_.defined() && buffer_.numel() >= bytes) return;
  release();
  buffer_ = allocate_private(bytes, at::kByte);
  meter_.add(MemoryClass::kHost, bytes);
}

// Appends a copy of `values` to the pieces in the buffer, without a gap. Pieces with the widest
// dtypes come first (StateSink::write), so every piece is aligned to its own dtype.
void StagedState::write(size_t entry, int64_t begin, const at::Tensor& values) {
  const auto bytes = static_cast<int64_t>(values.nbytes());
  TORCH_INTERNAL_ASSERT(used_ + bytes <= buffer_.numel());
  char* const to = static_cast<char*>(buffer_.mutable_data_ptr()) + used_;
  // Copies past the caches, because the copy is not read soon.
  copy_streaming(to, values.const_data_ptr(), bytes);
  used_ += bytes;
  pieces_.push_back({entry, begin, at::from_blob(to, {values.numel()}, values.options())});
}

void StagedState::replay(StateSink& sink) const {
  sink.begin(entries_);
  for (const Piece& piece : pieces_) sink.write(piece.entry, piece.begin, piece.values);
}

void StagedState::release() {
  if (!buffer_.defined()) return;
  meter_.remove(MemoryClass::kHost, buffer_.numel());
  pieces_.clear();
  buffer_ = at::Tensor();
}

}  // namespace tessera::internal
