#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/core/comm/hosts/call_record.h"
#include "tessera/core/comm/hosts/exit_action.h"
#include "tessera/core/comm/hosts/levels.h"
#include "tessera/core/comm/hosts/operation.h"
#include "tessera/core/sched/lane.h"

namespace tessera::internal::hosts {

class World;

/// This rank's side of one group: its levels, and the lanes that carry its collectives out.
///
/// Note [Two lanes]
/// ~~~~~~~~~~~~~~~~
/// A collective has a first stage, inside the host, which ends by starting what goes between hosts,
/// and a last one, which waits for that and shares it inside the host. First stages run one after
/// the other in one lane, last ones in another, in the same order. So while one collective is
/// between hosts, the next is already summed inside, and the caller does something else. Each lane
/// has its own group inside the host, and every group is used in the same order by all its ranks.
/// A first stage that has memory in common with an earlier collective waits until that one is over.
class Member {
 public:
  /// What is left to do when the first stage is over; null: nothing.
  using Last = std::function<void()>;
  /// `slices`: the slice that each rank asks for.
  using First = std::function<Last(const Collective& call, const std::vector<int>& slices)>;

  Member(World& world, Levels levels);
  /// Blocks until what runs is over. No effect on others in a child of fork().
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  const Levels& levels() const { return levels_; }
  std::string name() const { return std::string(levels_.flat->name()); }

  /// The next collective of the group: compares the ranks' calls, then runs both stages. Returns at
  /// once. Throws CommError if the world has failed, or in a child of fork(). A stage that throws
  /// fails the world. `numel`: of a call without tensors, what is compared of it.
  std::shared_ptr<Work> start(const Collective& call, First first, int64_t numel = -1);

  /// Whether everything that was started is over.
  bool is_idle() const { return open_.load(std::memory_order_acquire) == 0; }

 private:
  template <typename Body>
  void guard(Operation& operation, Body&& body);
  void run_first(const std::shared_ptr<Operation>& operation, const std::shared_ptr<Work>& after,
                 const First& first, const CallRecord& record);
  void wait_for_memory_of(const Collective& call);
  std::string as_all_say(const std::string& cause, int64_t sequence) const;
  void end(Operation& operation);

  World& world_;
  const Levels levels_;
  const ExitAction leaves_;
  int64_t sequence_ = -1;
  std::atomic<int> open_{0};
  std::deque<std::shared_ptr<Operation>> between_hosts_;  // the first lane's
  std::unique_ptr<Lane> last_;                            // from the first collective on
  std::unique_ptr<Lane> first_;                           // it posts to the other, so it goes first
  std::optional<ExitAction> ends_calls_;                  // theirs, and so before it leaves
};

}  // namespace tessera::internal::hosts
