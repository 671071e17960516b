#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <absl/functional/function_ref.h>

#include "tessera/core/comm/group/call.h"
#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/group/mailbox.h"
#include "tessera/core/comm/group/missing_ranks.h"
#include "tessera/core/comm/group/yielding_mutex.h"
#include "tessera/core/process/progress_report.h"
#include "tessera/core/sched/lane.h"

namespace tessera::internal {

/// This rank's side of one group: its calls, one after the other, and its messages.
///
/// Note [Calls under way]
/// ~~~~~~~~~~~~~~~~~~~~~~
/// When the turn of a call comes, the rank announces the call: its link tells the others the call's
/// arguments and where its data lies. After all ranks have announced call s, each of them compares
/// all these calls. If they differ, all ranks throw the same text before any data is touched. Then
/// each rank does its part, and the call is over when all ranks have done their parts.
///
/// A rank does not block between these stages. Its calls are advanced either by a background thread
/// or, under Lane::Mode::kInline, by the threads that make them. Those threads advance all calls of
/// the rank whenever they ask whether a call is over, and while they wait in any group of the same
/// world. So under kInline a waiting rank does the parts for which other ranks wait, but a rank
/// that computes for long does its parts late.
///
/// Calls end in order. A call begins when this rank has done its part in the previous call or, if
/// the two calls share memory, when the previous call is over.
class Member : public std::enable_shared_from_this<Member> {
 public:
  using Patience = internal::Patience;

  /// Pass `after_call` if this member is part of another group (hosts::HostSubgroups). That group
  /// makes its own calls with this member, looks for late ranks, and records the program's calls.
  /// `after_call` is called, in any thread, when a call of this member is over.
  Member(std::unique_ptr<Link> link, std::string name, Lane::Mode mode, Patience patience,
         std::function<void()> after_call = nullptr);
  ~Member();

  Link& link() const { return *link_; }
  const std::string& name() const { return name_; }
  Lane::Mode mode() const { return mode_; }
  const Patience& patience() const { return patience_; }

  /// Throws CommError in a child of fork(), which is no rank.
  void require_own_process(const char* op, std::string_view tag) const;

  /// Begins this rank's next call, or a message. Does not block. Throws CommError if the group has
  /// failed. Called by the thread that uses the group. `ranks`: see Call::Form.
  std::shared_ptr<Call> start(const Collective& collective, std::vector<int> ranks = {});
  /// Like start(), but blocks until the call has ended, and throws its error.
  std::shared_ptr<Call> run(const Collective& collective);

  /// Any thread. Advances the calls that are under way, unless another thread is doing so.
  void go_on() noexcept;
  /// look(): like go_on(), for a caller that asks whether `call` is over; fails the call if a rank
  /// has died or left. help(): like go_on(), for a thread that waits for something else.
  void look(const Call& call) noexcept;
  void help() noexcept;
  /// Returns true if this rank makes no more calls.
  bool is_closing() const { return closes_because_ != nullptr; }
  /// Returns true if a call or a message is under way.
  bool is_busy() const { return has_incoming_ || !is_idle_; }
  /// Any thread. Returns the ranks that the oldest call waits for, as far as is known.
  std::vector<AwaitedRank> awaited_ranks();
  /// Called now and then by a thread that waits. Fails the group if a rank has died or left, or has
  /// not come within the time-out; reports a long wait.
  void look_for_trouble(Call::Clock::time_point now, const Patience& patience);
  /// Any thread. await(call) blocks until the call has ended. await(call, longest) blocks for at
  /// most `longest`, and returns true if the call has ended.
  void await(Call& call);
  bool await(Call& call, std::chrono::milliseconds longest);

  /// Says that this rank makes no more calls, because of `cause`. Calls that are under way fail,
  /// unless the link has a thread, which finishes them first. Does not wait for other ranks.
  void close(const char* cause = "the group was destroyed before this was over");
  /// Called when the process ends. Blocks until the calls that a thread advances have ended, then
  /// marks this rank as having left.
  void leave();

 private:
  class Pause;

  bool drive(Call& call, std::optional<Call::Clock::time_point> until);
  bool drive_on(Call& call, std::optional<Call::Clock::time_point> until);
  void start_clock(Call& call, bool leaves_running);
  bool has_thread(const Collective& collective) const;
  bool is_driven_elsewhere(const Call& call) const;
  void serve();
  void go_on_until_idle();
  bool has_to_serve();
  void take_in();
  void accept(const std::shared_ptr<Call>& call);
  void guard(absl::FunctionRef<void()> body);
  void advance();
  void set_idle(bool is_idle);
  void leave_when_idle();
  bool announce_next();
  bool move();
  bool may_announce(Call& call);
  void finish_front();
  void look_for_late(Call::Clock::time_point now, const Patience& patience);
  bool is_part() const { return after_call_ != nullptr; }
  std::vector<AwaitedRank> find_awaited() const;
  void note_awaited();
  void note_awaited_for_callers(Call::Clock::time_point now);
  void note_wait(Call& call, WaitReport& wait) noexcept;
  [[noreturn]] void time_out(const Call& call, const std::vector<int>& overdue);
  void apply_failure(Call::Clock::time_point now);
  std::string hear_failure();
  void fail(const Fault& fault);
  void end_calls(const std::string& cause);

  const GroupPresence presence_;
  const std::unique_ptr<Link> link_;
  const std::string name_;
  const std::shared_ptr<FlightRing> flights_;
  const Lane::Mode mode_;
  const Patience patience_;
  const std::function<void()> after_call_;
  std::once_flag has_caller_;
  std::shared_ptr<const Call::Caller> caller_;  // set by the first call
  int64_t sequence_ = -1;                       // last number given to a collective
  std::atomic<const char*> closes_because_{nullptr};
  std::atomic<bool> process_ends_{false};

  YieldingMutex incoming_mutex_;
  std::vector<std::shared_ptr<Call>> incoming_;  // started, but not taken in yet
  std::atomic<bool> has_incoming_{false};

  YieldingMutex mutex_;
  std::vector<std::shared_ptr<Call>> calls_;  // calls that are not over, oldest first
  size_t announced_ = 0;                      // how many of calls_ are announced
  std::atomic<bool> is_idle_{true};           // nothing is under way
  int64_t begun_ = 0;                         // number of collectives that accept() has taken
  Mailbox mailbox_;
  std::optional<Call::Clock::time_point> failed_at_;
  std::atomic<Call::Clock::time_point> next_look_{};  // when look() looks for trouble again
  std::mutex awaited_mutex_;
  // The ranks that the oldest call waits for, as last noted for other threads.
  std::vector<AwaitedRank> awaited_;
  std::atomic<bool> is_serving_{false};
  // True once this rank has left; always false if the link has no thread.
  std::atomic<bool> has_left_{false};
  std::unique_ptr<Lane> lane_;  // declared last, because its thread uses the other members
};

}  // namespace tessera::internal
