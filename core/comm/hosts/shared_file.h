#pragma once

#include <cstdint>
#include <memory>

#include "tessera/core/process/fork.h"
#include "tessera/process_group.h"

namespace tessera::internal::hosts {

/// Zeroed memory that the ranks of one host map, and that takes up space only where it has been
/// written: unlike what groups allocate, whose space is certain. In a child of fork() it is not
/// mapped.
class SharedFile {
 public:
  /// Collective over `inside`. Null on all ranks if one cannot make or map it.
  static std::shared_ptr<SharedFile> make(ProcessGroup& inside, int64_t bytes);
  ~SharedFile();
  SharedFile(const SharedFile&) = delete;
  SharedFile& operator=(const SharedFile&) = delete;

  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  SharedFile(char* data, int64_t bytes) : data_(data), bytes_(bytes) {}

  const Origin origin_;
  char* const data_;
  const int64_t bytes_;
};

}  // namespace tessera::internal::hosts
