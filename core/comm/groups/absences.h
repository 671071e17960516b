#pragma once

#include <memory>

namespace tessera::internal {

/// What a rank tells those that it shares memory with: that it waits for others than them.
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

}  // namespace tessera::internal
