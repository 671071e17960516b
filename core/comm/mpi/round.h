#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/mpi/envelope.h"

namespace tessera::internal::mpi {

/// The envelopes of one collective, by rank.
class Round {
 public:
  explicit Round(int size) : envelopes_(static_cast<size_t>(size)), missing_(size) {}

  void set(int rank, const Envelope& envelope) {
    auto& place = envelopes_[static_cast<size_t>(rank)];
    if (!place) --missing_;
    place = envelope;
  }
  bool has(int rank) const { return envelopes_[static_cast<size_t>(rank)].has_value(); }
  const Envelope& of(int rank) const { return *envelopes_[static_cast<size_t>(rank)]; }
  bool is_complete() const { return missing_ == 0; }

 private:
  std::vector<std::optional<Envelope>> envelopes_;
  int missing_;
};

}  // namespace tessera::internal::mpi
