#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera::internal {

/// The ranks of one host, for one of them that communicates with other hosts, too: it tells them
/// when it waits for those, and what fails there; and it sees when one of them has died.
///
/// Note [Absent ranks]
/// ~~~~~~~~~~~~~~~~~~~
/// A rank that waits for another host keeps the ranks of its own host waiting. If nobody comes,
/// their time-outs are over at about the time of its own, and whichever is first is everyone's
/// cause: it would name a rank that only waits, too. So a rank is absent while it waits for another
/// host, and who waits for it then waits as long as that may last: it learns the cause from the
/// absent one. It ends all the same if no cause comes. A rank whose process is stopped is not
/// excused.
class HostRanks {
 public:
  virtual ~HostRanks() = default;
  /// Any thread, several at a time.
  virtual void begin_absence() = 0;
  virtual void end_absence() = 0;
  /// Any thread, does not block. Why these ranks have failed; "" if they have not. That the process
  /// of one has ended without leaving is such a cause, though nobody may have seen it so far.
  virtual std::string failure() = 0;
  /// The same if a process has so ended, else "".
  virtual std::string lost_rank() = 0;
  /// Any thread. Makes `cause` the failure of these ranks, unless they have one.
  virtual void fail(std::string_view cause) noexcept = 0;

 protected:
  HostRanks() = default;
  HostRanks(const HostRanks&) = default;
  HostRanks& operator=(const HostRanks&) = default;
};

/// A group whose ranks are all on one host.
class HasHostRanks {
 public:
  /// Its rank leaves no earlier than this is gone.
  virtual std::shared_ptr<HostRanks> host_ranks() = 0;

 protected:
  HasHostRanks() = default;
  ~HasHostRanks() = default;
  HasHostRanks(const HasHostRanks&) = default;
  HasHostRanks& operator=(const HasHostRanks&) = default;
};

/// A group of several hosts, whose network does not tell that a process has ended.
class WatchesHost {
 public:
  /// Local. From now on it fails when a rank of this host is lost, and the ranks of this host fail
  /// with it, whoever waits for whom.
  virtual void watch(std::weak_ptr<HostRanks> host) = 0;

 protected:
  WatchesHost() = default;
  ~WatchesHost() = default;
  WatchesHost(const WatchesHost&) = default;
  WatchesHost& operator=(const WatchesHost&) = default;
};

}  // namespace tessera::internal
