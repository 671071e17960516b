#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal {

/// Local. Appends 32 bits, little-endian, and takes them off the front, if there are as many.
void append_number(std::string& bytes, uint32_t number);
std::optional<uint32_t> take_number(std::string_view& bytes);

/// A message of the meeting: a kind and some texts. Encoded as the kind, the number of texts (32
/// bits), and each text after its length (32 bits), little-endian.
struct Message {
  static constexpr size_t kMaxFields = 65536;

  uint8_t kind = 0;
  std::vector<std::string> fields;

  friend bool operator==(const Message&, const Message&) = default;

  std::string to_bytes() const;

  /// Nothing unless `bytes` are exactly one message. For any input, uses no more memory than a few
  /// times its size.
  static std::optional<Message> from_bytes(std::string_view bytes);
};

}  // namespace tessera::internal
