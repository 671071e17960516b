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

/// The links of a group of several hosts. A rank's column consists of itself and, on every other
/// host, the rank that has the same local number.
struct Links {
  /// All ranks: messages, windows, failures, and collectives that gain nothing from two levels.
  std::unique_ptr<internal::Link> flat;
  std::unique_ptr<internal::Link> calls;   ///< this rank's column: exchanges the calls
  std::unique_ptr<internal::Link> across;  ///< this rank's column: moves data
  /// This host's ranks: moves data before it goes between hosts.
  std::unique_ptr<internal::Link> inside;
  /// This host's ranks: moves data after it came from other hosts.
  std::unique_ptr<internal::Link> last;
};

inline constexpr int64_t kEveryCall = std::numeric_limits<int64_t>::max();

/// One Member per link, which makes this rank's calls on that link. All ranks of a link make the
/// same calls in the same order.
class HostSubgroups {
 public:
  /// `patience` applies to messages and window reads. Collectives have no time-out on any of the
  /// links, because the group itself looks for late ranks.
  HostSubgroups(Links links, HostLayout layout, const std::string& group,
                Member::Patience patience);
  /// Called when `flat` or `inside` has failed. Fails all links but `flat` with `cause`, unless
  /// they have failed already. Calls that have begun may still end well within Link::kGrace.
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

  /// Returns memory that the ranks of this host share.
  at::Tensor scratch(int64_t numel, at::ScalarType dtype) const {
    return inside->link().allocate(numel, dtype);
  }
  /// Returns the ranks that this rank waits for on all links but `calls`. The ranks are numbered as
  /// in the group.
  std::vector<AwaitedRank> awaited() const;
};

/// Starts an all_gather of `own` into `all`, as the next call of `member`.
std::shared_ptr<Call> start_all_gather(Member& member, const at::Tensor& all, const at::Tensor& own,
                                       std::string_view tag);

/// Returns elements [begin, begin + numel) of `tensor`, as a view that keeps it alive. Calls no
/// slicing operator, because observers of operators would take that for an access to the model.
at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel);

}  // namespace tessera::internal::hosts
