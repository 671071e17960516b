#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/core/comm/flight_recorder/flight_ring.h"

namespace tessera::internal {

/// One call in its rank's recorder: begun when this is made, over at end(). One that was never made
/// of a ring records nothing.
class Flight {
 public:
  Flight() = default;
  Flight(std::shared_ptr<FlightRing> ring, const CallSignature& signature, int64_t sequence,
         std::string_view tag, std::string_view group)
      : ring_(std::move(ring)) {
    if (ring_ != nullptr) number_ = ring_->begin(signature, sequence, tag, group);
  }

  bool is_recorded() const { return ring_ != nullptr; }
  void end() {
    if (ring_ != nullptr) ring_->end(number_);
  }

 private:
  std::shared_ptr<FlightRing> ring_;
  uint64_t number_ = 0;
};

}  // namespace tessera::internal
