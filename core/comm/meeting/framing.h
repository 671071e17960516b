#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/core/comm/meeting/mac_key.h"

namespace tessera::internal {

/// Encodes and decodes frames for one side of a connection. A frame is a length (32 bits,
/// little-endian), that many bytes, and, once both sides have a key, the frame's MAC. See Note
/// [Message authentication].
class Framing {
 public:
  enum class Side : uint8_t { kMember, kServer };
  /// The largest number of bytes that a frame may hold: kMaxUnproven until the other side has
  /// proved itself, then kMax.
  static constexpr size_t kMaxUnproven = 1024;
  static constexpr size_t kMax = size_t{64} << 20;

  explicit Framing(Side side) : side_(side) {}

  /// From now on frames carry a MAC, both ways.
  void authenticate_with(const MacKey& key) { key_ = key; }
  /// Accepts frames of up to kMax bytes from now on, because the other side has proved itself.
  void trust() { is_trusted_ = true; }

  /// Returns the frame that carries `payload`, which has at most kMax bytes.
  std::string wrap(std::string_view payload);

  /// Takes bytes that were received.
  void add(std::string_view bytes) { received_.append(bytes); }
  /// Returns the next whole frame's payload, if there is one. After a frame that is too long or
  /// does not verify, is_broken() is true and no more frames come.
  std::optional<std::string> take();
  bool is_broken() const { return is_broken_; }

 private:
  std::string_view direction(bool sends) const;

  const Side side_;
  std::optional<MacKey> key_;
  bool is_trusted_ = false;
  // How many frames with a MAC were sent and taken so far. The MAC of the next frame covers the
  // number.
  uint64_t sent_ = 0;
  uint64_t taken_ = 0;
  std::string received_;
  bool is_broken_ = false;
};

}  // namespace tessera::internal
