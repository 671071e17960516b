#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "tessera/core/comm/handshake/handshake_store.h"

namespace tessera::internal {

/// Heartbeats in a store, by which ranks on other machines see that a process still runs: it
/// increments a counter under a key. A counter that has moved and then stops means that the process
/// has ended; a counter that never moves is left over from an earlier attempt.
class Heartbeat {
 public:
  static constexpr auto kPeriod = std::chrono::milliseconds(200);
  static constexpr auto kSilence = std::chrono::seconds(4);  ///< without a beat: it has ended

  explicit Heartbeat(HandshakeStore& store, std::chrono::milliseconds silence = kSilence)
      : store_(store), silence_(silence) {}

  /// Increments the counter of `name`, if it is time for that.
  void beat(const std::string& name);

  /// What is known of `name`: nothing yet, that it runs, or that it has stopped.
  enum class Sign : uint8_t { kNone, kRuns, kStopped };
  Sign sign_of(const std::string& name);

 private:
  using Clock = std::chrono::steady_clock;
  struct Seen {
    std::optional<std::string> count;
    Clock::time_point changed;
    bool runs = false;
  };

  HandshakeStore& store_;
  const std::chrono::milliseconds silence_;
  int64_t count_ = 0;
  Clock::time_point next_beat_{};
  std::map<std::string, Seen> seen_;
};

}  // namespace tessera::internal
