#include "tessera/file_system.h"

#include <string_view>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera {

absl::Status FileSystem::copy_file(const std::string& from, const std::string& to) {
  const auto entry = this->entry(from);
  if (!entry.ok()) return entry.status();
  const auto source = open(from);
  if (!source.ok()) return source.status();
  const auto copy = create(to);
  if (!copy.ok()) return copy.status();
  absl::Status status = internal::read_pieces(
      **source, entry->bytes,
      [&copy = **copy](std::string_view chunk) { return copy.write_all(chunk); });
  if (status.ok()) status = (*copy)->sync();
  return status.ok() ? (*copy)->close() : status;
}

}  // namespace tessera
