#pragma once

#include <array>
#include <optional>

#include <ATen/autocast_mode.h>

#include "tessera/fsdp/random_state.h"

namespace tessera::internal {

/// This thread's autocast state, as far as LibTorch exposes it: for every device, whether autocast
/// is enabled and with which dtype; and whether its cache is used. Local, some tens of nanoseconds.
class AutocastState {
 public:
  /// Records the present state.
  AutocastState();

  /// Sets the calling thread's autocast state to the recorded one.
  void install() const;

  bool is_enabled() const;  ///< for at least one device

 private:
  struct Device {
    bool is_enabled;
    at::ScalarType dtype;
  };
  std::array<Device, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> devices_;
  bool uses_cache_;
};

/// The state that a recomputed function must see again besides its arguments: the autocast state
/// and, if asked for, the default generators of the CPU and of one GPU. Local.
struct ForwardState {
  enum class Random : uint8_t { kKept, kIgnored };
  /// Records the state of the calling thread. kKept copies 5 KiB.
  ForwardState(Random random, std::optional<c10::Device> gpu);

  AutocastState autocast;
  std::optional<RandomState> random;  ///< unset under Random::kIgnored
};

/// While it lives, the calling thread runs the forward for which `state` was recorded, without
/// autocast's cache (Note [Autocast's cache] in forward_state.cc). The destructor restores autocast
/// and, if an exception kept finish() from being called, the generators.
class ForwardScope {
 public:
  /// `state` must outlive the scope.
  explicit ForwardScope(const ForwardState& state);
  ~ForwardScope();
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  void finish() { is_finished_ = true; }

 private:
  const ForwardState& state_;
  AutocastState outside_;
  bool is_finished_ = false;
};

/// While it lives, the calling thread sees the state that was recorded in the forward, whichever
/// thread ran the forward. The destructor restores the calling thread's own state.
class ReplayScope {
 public:
  explicit ReplayScope(const ForwardState& state);
  ~ReplayScope();
  ReplayScope(const ReplayScope&) = delete;
  ReplayScope& operator=(const ReplayScope&) = delete;

 private:
  ForwardState outside_;
  bool empties_cache_;
};

}  // namespace tessera::internal
