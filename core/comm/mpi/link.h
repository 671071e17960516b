#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/mpi/ranks.h"
#include "tessera/core/comm/mpi/steps.h"
#include "tessera/core/comm/mpi/windows.h"
#include "tessera/core/comm/mpi/world.h"
#include "tessera/core/memory/private_memory.h"

namespace tessera::internal::mpi {

/// A transfer. MPI may still move its data after the transfer was given up.
class Transfer : public internal::Transfer {
 public:
  /// Returns the exchange whose messages may still be under way; null if there is none.
  virtual Exchange* exchange() = 0;
};

/// The link of a group whose ranks communicate by MPI, on CPUs of any number of hosts. The
/// process's progress thread (Progress) advances its calls. Sums have the same bits as those of the
/// shm backend (Note [Traffic]). A read from a window is answered by the progress thread of the
/// rank that owns the memory (Note [Windows over MPI]). There are no shared buffers. A group that
/// reduces holds at most 8 MiB, or 32 KiB for each rank if that is more.
class Link final : public internal::Link {
 public:
  explicit Link(std::shared_ptr<Ranks> ranks);

  int rank() const override { return ranks_->rank(); }
  int size() const override { return ranks_->size(); }
  std::string_view backend() const override { return "mpi"; }
  Capabilities can() const override {
    return {.in_background = true, .one_sided_reads = true, .crosses_network = true};
  }
  const Origin& origin() const override { return world().origin(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    check_allocate(numel, dtype);
    return allocate_private(numel, dtype);
  }
  bool is_in_place(const at::Tensor& /*tensor*/) const override { return true; }
  bool has_thread() const override { return true; }

  bool may_announce(const Call& /*call*/, int64_t under_way) const override {
    return under_way < kMostAnnounced;
  }
  std::unique_ptr<internal::Transfer> prepare(Call& call) override;
  const CallRecord* record_of(int rank, int64_t sequence) const override;
  bool have_all_called(int64_t sequence) const override;
  void note_over(int64_t sequence) override;
  void abandon(std::unique_ptr<internal::Transfer> transfer, const Collective& collective) override;

  std::unique_ptr<internal::Transfer> send(const Call& call) override;
  std::optional<Arrival> next_arrival() override;
  std::unique_ptr<internal::Transfer> receive(const Arrival& arrival, const Call& call) override;
  void drop(const Arrival& arrival) override;

  void go_on() override;

  int number_of(int rank) const override { return ranks_->world_rank(rank); }
  std::string place_of(int rank) const override { return world().place_of(number_of(rank)); }
  std::string activity_of(int rank) const override;
  int64_t called_by(int rank) const override { return ranks_->told(rank).called; }
  int64_t finished_by(int rank) const override;
  bool has_left(int rank) const override { return ranks_->told(rank).left_after >= 0; }
  RankFlight flight_of(int rank) const override;
  std::shared_ptr<FlightRing> flights() const override { return world().flights(); }
  void watch(std::weak_ptr<HostRanks> host) override { world().watch(std::move(host)); }

  bool has_failed() const override { return ranks_->has_failed(); }
  Failure failure() const override { return ranks_->failure(); }
  bool fail(const Failure& failure) noexcept override;
  bool fail_world(std::string_view cause) noexcept override;
  void dump_flights(std::string_view cause) noexcept override { world().dump_flights(cause); }

  void leave() noexcept override;

  // Not used: the progress thread does not wait for a group.
  void before_look(Rest& /*rest*/) override {}
  void rest(Rest& /*rest*/) override {}
  void advance_others() override {}
  void wake() override;
  void attach(std::weak_ptr<Member> member) override;

  // The functions below are for transfers. Only the progress thread may call them.

  World& world() const { return ranks_->world(); }
  const std::shared_ptr<Ranks>& ranks() const { return ranks_; }
  void announce(const Call& call);
  std::shared_ptr<const Round> round_of(int64_t sequence) const {
    return rounds_.find(sequence)->second;
  }
  at::Tensor& scratch() { return scratch_; }
  /// Returns how many calls have finished on this rank.
  int64_t finished() const { return finished_; }
  /// Makes the window or the subgroup's link that `call` asks for. May be called only after every
  /// rank has made this call.
  void open(Call& call);
  /// Returns true if rank `rank` has acknowledged the data that was sent to it with this tag.
  /// Forgets the acknowledgement, so it returns true only once for each.
  bool take_receipt(int rank, int data_tag) { return receipts_.erase({rank, data_tag}) != 0; }

  // The functions below are for the World of this group.

  uint64_t key() const { return ranks_->key(); }
  void take(int world_rank, const Envelope& envelope);
  /// Notes that rank `world_rank` has left the world.
  void note_ended(int world_rank);
  void end_at_once() { ranks_->end_at_once(); }
  Windows& windows() const { return *windows_; }
  /// Returns true if this rank has left, serves no window and has no read under way.
  bool is_over() const { return is_gone_ && windows_->is_empty(); }

 private:
  static constexpr int64_t kMostAnnounced = 64;

  Round& make_round(int64_t sequence);
  void take_message(int from, const Envelope& envelope);

  const std::shared_ptr<Ranks> ranks_;
  const std::shared_ptr<Windows> windows_;
  at::Tensor scratch_;
  std::weak_ptr<Member> member_;
  std::map<int64_t, std::shared_ptr<Round>> rounds_;  // by sequence
  int64_t finished_ = 0;
  // Messages that no call has received yet, by the address of the Received.
  std::map<const void*, std::unique_ptr<Received>> arrived_;
  std::deque<Received*> new_;  // in arrived_, not returned by next_arrival() yet
  std::set<std::pair<int, int>>
      receipts_;          // acknowledged data: the receiving rank and the data's tag
  bool is_gone_ = false;  // this rank has left
};

}  // namespace tessera::internal::mpi
