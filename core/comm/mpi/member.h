#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/mpi/call.h"
#include "tessera/core/comm/mpi/mailbox.h"
#include "tessera/core/comm/mpi/remote_reads.h"
#include "tessera/core/comm/mpi/round.h"
#include "tessera/core/comm/mpi/transfer.h"
#include "tessera/core/comm/mpi/window_server.h"
#include "tessera/core/comm/mpi/world.h"

namespace tessera::internal::mpi {

/// This rank's side of one group: its calls, one after the other, what the others have told of
/// theirs, and its windows, which may outlast it. Beside the first part used by the progress thread
/// alone.
class Member : public std::enable_shared_from_this<Member> {
 public:
  /// `world_ranks` of the group's ranks.
  Member(std::shared_ptr<World> world, std::string name, std::vector<int> world_ranks, int rank);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(world_ranks_.size()); }
  const std::string& name() const { return name_; }
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  World& world() const { return *world_; }
  const std::shared_ptr<World>& world_ptr() const { return world_; }
  std::string name_of(int rank) const { return mpi::name_of(rank, world_ranks_); }
  uint64_t key() const { return key_; }
  /// Why calls fail; "" if they do not.
  std::string failure() const;
  /// Throws CommError if there is a cause, or in a child of fork(); the second only there.
  void require_usable(const char* op, int64_t sequence, std::string_view tag) const;
  void require_own_process(const char* op, std::string_view tag) const;
  /// A call of this rank, as Call says. A collective or a message is recorded.
  std::shared_ptr<Call> make_call(const Collective& collective, int64_t sequence,
                                  const char* name = nullptr) const;

  // The progress thread's part.

  void start(std::shared_ptr<Call> call);
  void start_message(const std::shared_ptr<Call>& call) { mailbox_.start(call); }
  void open_window(int64_t number, at::Tensor own);
  void close_window(int64_t number) { windows_.close(number); }
  void close_windows() { windows_.close_all(); }
  void start_read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request) {
    reads_.start(call, owner, request);
  }
  void take(int world_rank, const Envelope& envelope);
  /// That rank of the world has ended.
  void note_ended(int world_rank);
  /// Goes on with what is under way; whether anything moved.
  bool advance(Call::Clock::time_point now);
  bool is_busy() const { return !calls_.empty() || mailbox_.is_busy() || reads_.is_busy(); }
  /// Whether other ranks may read of this one, or this one of them.
  bool has_windows() const { return !windows_.is_empty() || reads_.is_busy(); }
  /// Whether other ranks may come with requests at any time.
  bool is_asked() const { return windows_.is_asked(); }
  /// Whether this rank has left, and nothing is read any more.
  bool is_over() const { return is_gone_ && !has_windows(); }

  /// Tells the others, once calls under way are over, that no more come.
  void make_no_calls() { makes_no_calls_ = !is_gone_; }
  /// The same, and that this rank is gone; messages under way fail, and windows stay.
  void leave();
  /// Whether calls are under way.
  bool has_calls() const { return !calls_.empty(); }
  /// Makes `cause` the cause of the group's failure on all ranks, unless there is one. `culprit`:
  /// the rank that began it; negative: this one.
  void fail(const std::string& cause, int culprit);
  /// Fails what is under way.
  void end_all(const std::string& cause);
  /// The same because rank `world_rank` of the world has ended it: Note [Failures overtake data].
  void end_all_after(int world_rank, const std::string& cause);
  /// Says whom the call has long been waiting for, once they have been asked, unless it is over
  /// then.
  void report_wait(const std::shared_ptr<Call>& call, const std::vector<int>& missing);
  /// Where a rank that others wait for is, for messages: " (pid 7 on nodeB)"; "" if unknown.
  std::string place_of(int rank) const { return world_->place_of(world_rank(rank)); }
  bool has_left(int rank) const { return left_.count(rank) != 0; }
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  Envelope envelope(Envelope::Kind kind) const;
  void send_to_others(const Envelope& envelope);

 private:
  /// One of the first calls, once it is under way.
  struct Active;

  Round& round_of(int64_t sequence);
  void take_failure(const std::string& cause);
  void end_calls(const std::string& cause);
  void send_call(const Call& call);
  bool is_small(const Call& call) const;
  void end_if_doomed(Call::Clock::time_point now);
  bool go_on(Call::Clock::time_point now);
  bool begin_next();
  bool may_begin(Call& call);
  bool may_follow();
  bool compare(Active& active, Call::Clock::time_point now);
  bool move(Active& active, Call::Clock::time_point now);
  bool finish();
  void time_out(const Call& call, const std::vector<int>& missing, const std::string& found);
  bool is_first_of(const Round& round) const;
  void note_last_call(RankFlight& silent) const;
  std::string difference(const Round& round) const;
  std::string slice_problem(const Round& round) const;
  int rank_of(int world_rank) const;
  void say_left();
  void go_when_idle();

  const std::shared_ptr<World> world_;
  const std::string name_;
  const uint64_t key_;
  const std::vector<int> world_ranks_;
  const int rank_;

  mutable std::mutex mutex_;
  std::string failure_;

  /// The failure of the world that waits for calls with smaller sequence numbers.
  struct Doom {
    std::string cause;
    int64_t sequence;
    Call::Clock::time_point deadline;
  };
  std::optional<Doom> doom_;
  std::deque<std::shared_ptr<Call>> calls_;
  std::deque<std::shared_ptr<Active>> active_;  // of the first calls; Note [Calls that follow]
  std::map<int64_t, Round> rounds_;             // by sequence
  std::map<int, int64_t> left_;                 // how many calls they had finished
  std::map<int, int64_t> called_;               // how many the ranks have begun
  int64_t finished_ = 0;
  Scratch scratch_;
  bool makes_no_calls_ = false;  // and says so when those under way are over
  bool leaves_ = false;          // then, too
  bool is_gone_ = false;         // this rank has left
  Mailbox mailbox_;
  WindowServer windows_;
  RemoteReads reads_;
};

}  // namespace tessera::internal::mpi
