#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::internal {

/// Equal for equal tags.
uint64_t hash_of_tag(std::string_view tag);

/// The tag of a call as ranks compare it and messages show it: its hash, its length and its first
/// kBytes. Plain bytes, which may come from another process.
template <size_t kBytes>
struct CallTag {
  uint64_t hash = 0;
  uint32_t length = 0;
  char text[kBytes] = {};

  CallTag() = default;
  explicit CallTag(std::string_view tag) { set(tag); }

  void set(std::string_view tag) {
    hash = hash_of_tag(tag);
    length = static_cast<uint32_t>(tag.size());
    tag.copy(text, kBytes);
  }

  /// Its beginning.
  std::string_view beginning() const { return {text, std::min<size_t>(length, kBytes)}; }
  /// The same, with "..." where that is not all.
  std::string shown() const {
    std::string shown(beginning());
    if (shown.size() < length) shown += "...";
    return shown;
  }

  friend bool operator==(const CallTag& a, const CallTag& b) {
    return a.hash == b.hash && a.length == b.length && a.beginning() == b.beginning();
  }
};

}  // namespace tessera::internal
