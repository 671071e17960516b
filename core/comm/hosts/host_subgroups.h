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
  std::unique_ptr<internal::Link> calls;   ///< one rank per host: exchanges the calls
  std::unique_ptr<internal::Link> across;  ///< one rank per host: moves data
  std::unique_ptr<internal::Link> inside;  ///< this host's ranks: before data goes between hosts
  std::unique_ptr<internal::Link> last;    ///< this host's ranks: after data has come
};

inline constexpr int64_t kEveryCall = std::numeric_limits<int64_t>::max();

/// One Member per link, which makes this rank's calls on that link. All ranks of a link make the
/// same calls in the same order.
class HostSubgroups {
 public:
  /// `patience` applies to messages and reads.
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
  std::vector<AwaitedRank> awaited() const;
};

/// Starts an all_gather of `own` into `all`, as the next call of `member`.
std::shared_ptr<Call> start_all_gather(Member& member, const at::Tensor& all, const at::Tensor& own,
                                       std::string_view tag);

/// Returns elements [begin, begin + numel) of `tensor`, as a view that keeps it alive. Calls no
/// slicing operator, so that operator observers do not take it for a part of the model.
at::Tensor part_of(const at::Tensor& tensor, int64_t begin, int64_t numel);

}  // namespace tessera::internal::hosts
