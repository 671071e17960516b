#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "tessera/collective.h"
#include "tessera/core/comm/flight_recorder/flight.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"
#include "tessera/work.h"

namespace tessera::internal::hosts {

/// A collective of a group of several hosts: its lanes carry it out and end it, any thread may
/// wait. Keeps the tensors until it has ended.
class Operation final : public Work {
 public:
  /// It is recorded in `flights`, if there are any.
  Operation(Collective collective, std::string group, int64_t sequence, int rank,
            std::shared_ptr<FlightRing> flights);

  bool is_completed() override;
  void wait() override;
  bool wait_for(std::chrono::milliseconds longest) override;

  /// Its number in the group.
  int64_t sequence() const { return context_.sequence; }
  /// While it has not ended.
  const Collective& collective() const { return collective_; }

  /// Whether it has not ended and has memory in common with `other`.
  bool is_open_on(const Collective& other);

  /// Ends it, once: well, or so that wait() throws this cause.
  void finish() {
    flight_.end();
    end(std::nullopt);
  }
  void fail(std::string cause) { end(std::move(cause)); }

 private:
  void end(std::optional<std::string> cause);

  const std::string tag_;
  Collective collective_;
  const CommErrorContext context_;
  const Origin origin_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_over_ = false;
  std::optional<std::string> cause_;
  Flight flight_;
};

}  // namespace tessera::internal::hosts
