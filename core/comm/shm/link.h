#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/shm/sync.h"
#include "tessera/core/comm/shm/world.h"

namespace tessera::internal::shm {

struct MessagePage;
class Outbox;

/// Ranks of one host that work in each other's memory. Peers read and write buffers from allocate()
/// in place; private buffers are copied through a staging area of kStagingBytes per rank. Ranks may
/// be processes or threads of one process, and may mix both kinds of buffer in one collective.
class Link final : public internal::Link {
 public:
  static constexpr int64_t kStagingBytes = int64_t{256} << 10;

  /// Makes the link of rank `rank` of `channel`, which lies in `memory`. `spin_count`: how often a
  /// waiting thread looks for progress before it yields its core; 0 if the ranks' threads outnumber
  /// the cores.
  Link(std::shared_ptr<World> world, std::shared_ptr<Segment> memory, Channel& channel, int rank,
       int spin_count);
  ~Link() override;

  int rank() const override { return rank_; }
  int size() const override { return channel_.size; }
  std::string_view backend() const override { return "shm"; }
  Capabilities can() const override { return {.one_sided_reads = true}; }
  const Origin& origin() const override { return world_->origin(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  bool is_in_place(const at::Tensor& tensor) const override;
  std::unique_ptr<SharedBuffer> make_shared_buffer(ProcessGroup& group, int64_t bytes,
                                                   std::string_view name) override;

  bool may_announce(const Call& call, int64_t under_way) const override;
  std::unique_ptr<Transfer> prepare(Call& call) override;
  const CallRecord* record_of(int rank, int64_t sequence) const override;
  bool have_all_called(int64_t sequence) const override;
  void note_over(int64_t sequence) override;
  void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) override;

  std::unique_ptr<Transfer> send(const Call& call) override;
  std::optional<Arrival> next_arrival() override;
  std::unique_ptr<Transfer> receive(const Arrival& arrival, const Call& call) override;

  std::string place_of(int rank) const override { return world_->place_of(world_rank(rank)); }
  int number_of(int rank) const override { return world_->number_of(world_rank(rank)); }
  std::string activity_of(int rank) const override { return world_->activity_of(world_rank(rank)); }
  int64_t called_by(int rank) const override;
  int64_t finished_by(int rank) const override;
  bool has_left(int rank) const override;
  RankFlight flight_of(int rank) const override { return world_->flight_of(world_rank(rank)); }
  std::shared_ptr<FlightRing> flights() const override { return world_->flights(); }
  std::shared_ptr<HostRanks> host_ranks() override { return world_; }

  bool has_failed() const override;
  Failure failure() const override;
  bool fail(const Failure& failure) noexcept override;
  bool fail_world(std::string_view cause) noexcept override;
  void look_for_dead(const std::function<std::string(const std::string&)>& describe) override;
  void dump_flights(std::string_view cause) noexcept override { world_->dump_flights(cause); }

  void leave() noexcept override;
  void attach(std::weak_ptr<Member> member) override;

  void before_look(Rest& rest) override;
  void rest(Rest& rest) override;
  void end_rest(Rest& rest) override;
  void wake() override { world_->bell_of(world_->rank()).ring(); }
  void note_busy(bool is_busy) override { world_->progress().count(is_busy ? 1 : -1); }
  void advance_others() override { world_->progress().advance(); }

  // The functions from here on are for transfers.

  World& world() const { return *world_; }
  const std::shared_ptr<Segment>& memory() const { return memory_; }
  Channel& channel() const { return channel_; }
  int world_rank(int rank) const { return channel_.slot(rank).world_rank; }
  /// Returns what a rank has posted as call number `sequence`.
  PostedCall& call_of(int rank, int64_t sequence) const {
    return channel_.slot(rank).call(sequence);
  }
  /// These functions post a call in three steps. begin_post() writes its record. The caller then
  /// sets where its data lies; for a call that moves no data, fill() sets where the window or the
  /// new group's channel lies instead. post() shows the call to the peers.
  PostedCall& begin_post(const Call& call);
  void fill(PostedCall& posted, const Call& call);
  void post(const Call& call);
  /// Open what the call makes: a window, or the link of a subgroup. All ranks must have posted the
  /// call.
  void open_window(Call& call);
  void open_subgroup(Call& call);
  /// Returns the address of a peer's memory in this process. Maps the memory at the first use. If
  /// it cannot be mapped, throws Fault if the group has failed (the peer may have died), else
  /// c10::Error.
  char* resolve(const SharedRange& range);
  /// Returns where peers find this memory; nullopt if they cannot map it.
  std::optional<SharedRange> find(const void* data, int64_t bytes) const {
    return world_->arena()->find(data, bytes);
  }
  /// Room for one address per rank, kept so that calls do not allocate it.
  std::vector<char*>& sources() { return sources_; }
  /// Returns this rank's staging area. Allocates it at the first use.
  char* staging();
  /// Notes that this rank has finished reading and writing for the call.
  void mark_done(int64_t sequence);
  /// Like mark_done(), for a barrier. Rings no bells: a rank waits for a barrier's end only to
  /// reuse the barrier's slot, ChannelSlot::kCalls calls later, and then polls.
  void note_done(int64_t sequence) {
    channel_.slot(rank_).done.store(sequence + 1, std::memory_order_release);
  }
  bool are_all_done(int64_t sequence) const;
  /// Returns the ranks for which the condition is true.
  template <typename Condition>
  std::vector<int> ranks_where(Condition&& condition) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < size(); ++rank) {
      if (condition(rank)) ranks.push_back(rank);
    }
    return ranks;
  }
  /// end_step(): notes that this rank has ended one more step of a call in chunks. steps(): returns
  /// how many steps this rank has ended; equal on all ranks when a call begins.
  void end_step();
  int64_t steps() const { return steps_; }
  bool have_all_ended(int64_t steps) const;
  /// Wakes the waiting threads of the group's ranks.
  void ring_bells() { world_->ring_bells(channel_); }

 private:
  template <typename Condition>
  bool is_true_of_all(Condition&& condition) const;
  uint32_t done_so_far() const;
  SharedRange make_channel(const Call& call);
  void drop_taken();
  std::optional<Arrival> next_arrival_from(int sender);

  /// How far this rank has read a sender's list of messages.
  struct Cursor {
    MessagePage* page = nullptr;
    uint32_t next = 0;
  };

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Segment> memory_;
  Channel& channel_;
  const int rank_;
  const int spin_count_;
  std::vector<char*> sources_;
  int64_t steps_ = 0;
  // When last checked, all ranks had done at least this many calls, counted from the first.
  mutable int64_t done_by_all_ = 0;
  char* staging_ = nullptr;
  // The channel of a subgroup that is being made. Only the subgroup's first rank makes it; the
  // other ranks open it.
  std::shared_ptr<Segment> subgroup_;
  // Peers' segments that this rank has mapped. A mapping keeps its file alive, so no other file can
  // get the same id.
  std::unordered_map<SegmentId, std::shared_ptr<Segment>, SegmentId::Hash> segments_;
  std::shared_ptr<Outbox> outbox_;             // set by the first send
  std::list<std::unique_ptr<Transfer>> sent_;  // copies that their receivers have not taken yet
  std::vector<Cursor> cursors_;                // one per sender
  int next_sender_ = 0;
};

}  // namespace tessera::internal::shm
