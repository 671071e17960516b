#include "tessera/checkpoint/step/verified_file.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/checkpoint/format/block_checksums.h"

namespace tessera::internal {

absl::Status damage(const std::string& path, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat("[checkpoint] '", path, "': ", problem,
                                          "; use another step, or restore this one from a copy"));
}

VerifiedFile::VerifiedFile(std::unique_ptr<ReadableFile> file, std::string path,
                           const ManifestFile& description)
    : file_(std::move(file)), path_(std::move(path)), description_(description) {}

int64_t VerifiedFile::block_bytes(int64_t index) const {
  return std::min(kBlockBytes, description_.bytes - index * kBlockBytes);
}

absl::Status VerifiedFile::read_block(int64_t index, absl::Span<char> to) {
  if (absl::Status status = file_->read(index * kBlockBytes, to); !status.ok()) return status;
  if (checksum_of({to.data(), to.size()}) == description_.checksums[static_cast<size_t>(index)]) {
    return absl::OkStatus();
  }
  return damage(
      path_, absl::StrCat("got another checksum of block ", index, " (bytes ", index * kBlockBytes,
                          " to ", index * kBlockBytes + block_bytes(index),
                          ") than its manifest has, expected the same"));
}

absl::Status VerifiedFile::load_block(int64_t index) {
  if (index == block_index_) return absl::OkStatus();
  block_index_ = -1;
  block_.resize(static_cast<size_t>(block_bytes(index)));
  absl::Status status = read_block(index, absl::MakeSpan(block_));
  if (status.ok()) block_index_ = index;
  return status;
}

absl::Status VerifiedFile::verify_block(int64_t index) { return load_block(index); }

absl::Status VerifiedFile::read(int64_t offset, absl::Span<char> to) {
  while (!to.empty()) {
    const int64_t index = offset / kBlockBytes;
    const int64_t within = offset % kBlockBytes;
    const auto count =
        static_cast<size_t>(std::min(block_bytes(index) - within, static_cast<int64_t>(to.size())));
    const absl::Span<char> part = to.subspan(0, count);
    const bool is_whole = static_cast<int64_t>(count) == block_bytes(index);
    absl::Status status =
        is_whole && index != block_index_ ? read_block(index, part) : load_block(index);
    if (!status.ok()) return status;
    if (index == block_index_) std::memcpy(part.data(), block_.data() + within, count);
    offset += static_cast<int64_t>(count);
    to.remove_prefix(count);
  }
  return absl::OkStatus();
}

}  // namespace tessera::internal
