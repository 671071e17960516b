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
// MPI asks the receiver before it sends a large message. Over TCP, the request and then the reply
// wait until the data before them has been sent, which takes a third of a second at 100 Mbit/s. So
// data goes in pieces that MPI sends eagerly (Exchange::kUnaskedBytes), one to each peer in a step.
// Enough steps are under way at a time to fill a link: as many as fit into kHeldBytes, but at least
// kLeastSteps and at most kMostSteps.
constexpr int64_t kMostSteps = 32;
constexpr int64_t kLeastSteps = 4;
constexpr int64_t kHeldBytes = int64_t{8} << 20;

/// Returns how many steps are under way at a time if a step has a piece for each of `ranks` ranks.
int64_t steps_under_way(int ranks);

/// Moves the data of one collective in steps, once the ranks' calls are known to match. A step
/// starts messages. The next step begins when all messages have completed except those of the last
/// lag() steps.
///
/// Note [Traffic]
/// ~~~~~~~~~~~~~~
/// Bytes that each rank sends, for N ranks and a tensor of n bytes. all_reduce: 2 n (N-1)/N,
/// because every rank reduces 1/N of the tensor and sends the result to all. reduce_scatter and
/// all_gather: N-1 slices. broadcast: at most 2 n (N-1)/N, because ranks pass the root's parts on;
/// if n is at most kDirectBytes, the root sends the whole tensor to every rank. Every element is
/// summed by one rank, in rank order, with the kernels of the shm backend, so the sums have the
/// same bits. Data of at most Envelope::kPayloadBytes is in the envelopes, so such a collective
/// costs one exchange of envelopes.
class Steps {
 public:
  virtual ~Steps() = default;
  /// Starts the next step and returns true. Returns false if no step is left, and on every later
  /// call.
  virtual bool advance(Exchange& exchange) = 0;
  /// Returns how many of the latest steps may still be under way when the next step starts.
  virtual int64_t lag() const = 0;
  /// Returns how the ranks' calls differ, if only the steps could find that (as with the counts of
  /// an all_to_all); "" if the calls match. The text is equal on all ranks.
  virtual std::string problem() const { return ""; }
};

/// What the steps of a collective need. What the references refer to must outlive the steps.
struct CollectiveContext {
  const Collective& call;
  const Round& round;
  int rank;
  int size;
  const internal::Link& link;  ///< for the names of ranks in messages
  at::Tensor& scratch;         ///< receive buffer of the group's reductions, kept between them
};

/// Returns how many bytes of data travel in the envelope of `call`; -1 if the data follows in
/// messages. Equal on all ranks whose calls match.
int64_t payload_bytes(const Collective& call);

/// Returns the steps of a collective, or null if no data is left to move, because there is none or
/// it came in the envelopes. In the latter case make_steps() has put it into the output.
std::unique_ptr<Steps> make_steps(const CollectiveContext& context);

std::unique_ptr<Steps> make_reduce_steps(const CollectiveContext& context);

}  // namespace tessera::internal::mpi
