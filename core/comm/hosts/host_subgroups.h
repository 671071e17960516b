#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/group/member.h"
#include "tessera/core/comm/hosts/host_layout.h"

namespace tessera::internal::hosts {

/// The links of a group of several hosts.
struct Links {
  /// All ranks: messages, windows, failures, and collectives that gain nothing from two levels.
  std::unique_ptr<internal::Link> flat;
  std::unique_ptr<internal::Link> calls;   ///< one rank per host: what ranks call
  std::unique_ptr<internal::Link> across;  ///< the same ranks: data
  std::unique_ptr<internal::Link> inside;  ///< this host's ranks: before data goes between hosts
  std::unique_ptr<internal::Link> last;    ///< this host's ranks: after that
};

inline constexpr int64_t kEveryCall = std::numeric_limits<int64_t>::max();

/// This rank's calls of each of these links. All its ranks make the same calls in one order.
class HostSubgroups {
 public:
  /// `patience`: for messages and reads.
  HostSubgroups(Links links, HostLayout layout, const std::string& group,
                Member::Patience patience);
  /// Fails the other links when `flat` has failed. Begun calls may still end well within kGrace.
  void fail(const std::string& cause);
  /// Ends the calls under way.
  ~HostSubgroups();
  HostSubgroups(const HostSubgroups&) = delete;
  HostSubgroups& operator=(const HostSubgroups&) = delete;
  /// Tells the ranks of this host that this one makes no more calls.
  void leave();

  const HostLayout layout;
  std::shared_ptr<Member> inside, last, flat, calls, across;

  int rank() const { return flat->link().rank(); }
  int hosts() const { return layout.hosts; }
  int locals() const { return layout.locals; }
  int host() const { return layout.host_of(rank()); }
  int local() const { return layout.local_of(rank()); }
  bool is_here(int rank) const { return layout.host_of(rank) == host(); }

  /// Memory that the ranks of this host share.
  at::Tensor scratch(int64_t numel, at::ScalarType dtype) const {
    return inside->link().allocate(numel, dtype);
  }
  /// Returns the ranks of the group that these calls wait for.
  std::vector<Member::Awaited> awaited() const;
};

/// Starts the next call of one of these links.
std::shared_ptr<Call> start_all_gather(Member& member, const at::Tensor& all, const at::Tensor& own,
                                       std::string_view tag);

/// Returns elements [begin, begin + numel) of `tensor`, which they keep alive. Not an operator, so
/// that observers of operators do not take it for the model's.
at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel);

}  // namespace tessera::internal::hosts
