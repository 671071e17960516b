#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/envelope.h"
#include "tessera/core/comm/mpi/exchange.h"

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

// Note [Steps under way]
// ~~~~~~~~~~~~~~~~~~~~~~
// MPI asks the receiver before it sends a large message. Over TCP both the question and the answer
// queue after what is being sent: at 100 Mbit/s for a third of a second. So data goes in pieces
// that MPI sends eagerly (Exchange::kUnaskedBytes), one to each peer in a step. As many steps are
// under way at a time as fill a link, but no more than kHeldBytes in all.
constexpr int64_t kMostSteps = 32;
constexpr int64_t kLeastSteps = 4;
constexpr int64_t kHeldBytes = int64_t{8} << 20;

/// Returns how many steps, of a piece for each of `ranks` ranks, are under way at a time.
int64_t steps_under_way(int ranks);

/// Moves the data of one collective, after the ranks' calls were found equal, in steps. A step
/// starts messages; the next one begins when all are over but those of the last lag() steps.
///
/// Note [Traffic]
/// ~~~~~~~~~~~~~~
/// Bytes that a rank sends, for N ranks and n bytes. all_reduce: 2 n (N-1)/N, as every rank reduces
/// the N-th part and gives the result to all. reduce_scatter and all_gather: N-1 slices. broadcast:
/// at most 2 n (N-1)/N, as ranks pass the root's parts on; up to kDirectBytes the root sends n to
/// every rank. Every element is summed by one rank, in rank order, with the kernels of shared
/// memory, so the bits are the same. Up to Envelope::kPayloadBytes the data is in the envelopes, so
/// an operation costs one exchange.
class Steps {
 public:
  virtual ~Steps() = default;
  /// Starts the next step and returns true. Returns false if no step is left, and on every later
  /// call.
  virtual bool advance(Exchange& exchange) = 0;
  /// Returns how many of the last steps may still be under way when the next one starts.
  virtual int64_t lag() const = 0;
  /// Returns why the ranks' calls do not fit, if found only now; equal on all ranks; "" if they do.
  virtual std::string problem() const { return ""; }
};

/// Inputs of the steps. References must outlive them.
struct CollectiveContext {
  const Collective& call;
  const Round& round;
  int rank;
  int size;
  const internal::Link& link;  ///< for names
  at::Tensor& scratch;  ///< memory into which the group's reductions receive, kept between them
};

/// Bytes of data that go into the envelope of this call; -1 if it follows in messages. Equal on
/// ranks whose calls match.
int64_t payload_bytes(const Collective& call);

/// Returns null if nothing is to be moved, or all data came with the calls and is in place.
std::unique_ptr<Steps> make_steps(const CollectiveContext& context);

std::unique_ptr<Steps> make_reduce_steps(const CollectiveContext& context);

}  // namespace tessera::internal::mpi
