#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace tessera::internal {

/// What a rank tells those that it shares memory with: that it waits for others than them, or what
/// it has heard of those. And what it sees of them.
///
/// Note [Absent ranks]
/// ~~~~~~~~~~~~~~~~~~~
/// A rank that waits for another host keeps the ranks of its own host waiting. If nobody comes,
/// their time-outs are over at about the time of its own, and whichever is first is everyone's
/// cause: it would name a rank that only waits, too. So a rank is absent while it waits for another
/// host, and who waits for it then waits as long as that may last: it learns the cause from the
/// absent one. It ends all the same if no cause comes. A rank whose process is stopped is not
/// excused.
class Absences {
 public:
  virtual ~Absences() = default;
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
  Absences() = default;
  Absences(const Absences&) = default;
  Absences& operator=(const Absences&) = default;
};

/// A group whose ranks see each other's.
class SharesAbsences {
 public:
  /// Its rank leaves no earlier than this is gone.
  virtual std::shared_ptr<Absences> absences() = 0;

 protected:
  SharesAbsences() = default;
  ~SharesAbsences() = default;
  SharesAbsences(const SharesAbsences&) = default;
  SharesAbsences& operator=(const SharesAbsences&) = default;
};

/// A group of several hosts, whose network does not tell that a process has ended.
class WatchesHost {
 public:
  /// Local. From now on it fails when a rank of this host is lost, and the ranks of this host fail
  /// with it, whoever waits for whom.
  virtual void watch(std::weak_ptr<Absences> host) = 0;

 protected:
  WatchesHost() = default;
  ~WatchesHost() = default;
  WatchesHost(const WatchesHost&) = default;
  WatchesHost& operator=(const WatchesHost&) = default;
};

}  // namespace tessera::internal
