#include "tessera/file_system.h"

#include <algorithm>

namespace tessera {

absl::Status FileSystem::copy_file(const std::string& from, const std::string& to) {
  constexpr int64_t kChunkBytes = 1 << 20;
  const auto entry = this->entry(from);
  if (!entry.ok()) return entry.status();
  const auto source = open(from);
  if (!source.ok()) return source.status();
  const auto copy = create(to);
  absl::Status status = copy.status();
  std::string chunk;
  for (int64_t at = 0; status.ok() && at < entry->bytes; at += kChunkBytes) {
    chunk.resize(static_cast<size_t>(std::min(kChunkBytes, entry->bytes - at)));
    status = (*source)->read(at, absl::MakeSpan(chunk));
    if (status.ok()) status = (*copy)->write_all(chunk);
  }
  if (status.ok()) status = (*copy)->sync();
  return status.ok() ? (*copy)->close() : status;
}

}  // namespace tessera
