#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal::testing {

struct SimulatedNode;
using SimulatedNodePointer = std::shared_ptr<SimulatedNode>;

/// A change of a directory: `removed` is no longer a name in it, `added` is a name of `node`; "":
/// neither.
struct SimulatedChange {
  std::string removed;
  std::string added;
  SimulatedNodePointer node;
};

/// A file or directory of a SimulatedFileSystem: its current and its durable content.
struct SimulatedNode {
  FileEntry::Kind kind = FileEntry::Kind::kFile;
  bool is_broken = false;  // an fsync failed
  std::string bytes;
  std::string durable_bytes;
  std::map<std::string, SimulatedNodePointer> names;
  std::map<std::string, SimulatedNodePointer> durable_names;
  std::vector<SimulatedChange> changes;  // of names since durable_names
  int readers = 0;
  bool is_locked = false;

  void apply(const SimulatedChange& change) {
    if (!change.removed.empty()) names.erase(change.removed);
    if (!change.added.empty()) names[change.added] = change.node;
  }
  void change(SimulatedChange change) {
    apply(change);
    changes.push_back(std::move(change));
  }

  size_t states() const {
    constexpr size_t kMaxChanges = 20;  // later changes go with the last of these
    if (kind == FileEntry::Kind::kDirectory) {
      return size_t{1} << std::min(changes.size(), kMaxChanges);
    }
    return bytes == durable_bytes ? 1 : 4;
  }
  std::string bytes_in(size_t state) const {
    const size_t common = std::min(durable_bytes.size(), bytes.size());
    const size_t middle = common + (bytes.size() - common) / 2;
    std::string torn = bytes;
    switch (state) {
      case 1:
        return bytes.substr(0, middle);
      case 2:
        std::fill(torn.begin() + static_cast<ptrdiff_t>(common),
                  torn.begin() + static_cast<ptrdiff_t>(middle), '\0');
        return torn;
      case 3:
        return bytes;
      default:
        return durable_bytes;
    }
  }
};

}  // namespace tessera::internal::testing
