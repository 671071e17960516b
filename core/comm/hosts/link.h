#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/hosts/levels.h"
#include "tessera/core/comm/hosts/read_cache.h"
#include "tessera/core/comm/hosts/steps.h"

namespace tessera::internal::hosts {

/// Ranks of several hosts: shared memory inside each, and between them what connects columns, the
/// ranks with one number on every host. A collective is calls of these links, one after the other
/// (transfers.h).
///
/// Note [Calls of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// If ranks' collectives differed, an error that compared the calls they are made of would name
/// sizes that nobody has asked for. So the ranks of a host exchange their calls first; if these are
/// equal, each exchanges its host's call, and which slices the host's ranks ask for, with its
/// column. Then every rank has seen all calls, and all find the same difference. If they differ
/// inside a host, its ranks fail the group, and the others, which wait for them, throw the same
/// cause. A barrier consists of this exchange only.
///
/// Calls inside a host come in one order on all its ranks: a collective is announced when the one
/// before has handed on what goes between hosts, and shares what has come there when all before it
/// are over.
class Link final : public internal::Link {
 public:
  /// `cache`: of all groups of this rank's host.
  Link(Links links, HostLayout layout, const std::string& group, Member::Patience of_messages,
       std::shared_ptr<ReadCache> cache, uint64_t id);
  ~Link() override;

  int rank() const override { return levels_.rank(); }
  int size() const override { return levels_.layout.ranks(); }
  std::string_view backend() const override { return "hosts"; }
  Capabilities can() const override;
  const Origin& origin() const override { return flat().origin(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  bool is_in_place(const at::Tensor& /*tensor*/) const override { return true; }
  bool wants_thread() const override { return true; }
  std::unique_ptr<SharedBuffer> make_shared_buffer(ProcessGroup& group, int64_t bytes,
                                                   std::string_view name) override;

  bool may_announce(const Call& call, int64_t under_way) const override;
  std::unique_ptr<Transfer> prepare(Call& call) override;
  const CallRecord* record_of(int rank, int64_t sequence) const override;
  bool have_all_called(int64_t sequence) const override;
  void note_over(int64_t sequence) override;
  void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) override;

  Member* messages() override { return levels_.flat.get(); }
  std::unique_ptr<Transfer> send(const Call& /*call*/) override { return nullptr; }
  std::optional<Arrival> next_arrival() override { return std::nullopt; }
  std::unique_ptr<Transfer> receive(const Arrival& /*arrival*/, const Call& /*call*/) override {
    return nullptr;
  }
  void go_on() override;

  int number_of(int rank) const override { return flat().number_of(rank); }
  std::string place_of(int rank) const override { return flat().place_of(rank); }
  std::string activity_of(int rank) const override;
  int64_t called_by(int rank) const override;
  int64_t finished_by(int rank) const override;
  bool has_left(int rank) const override;
  RankFlight flight_of(int rank) const override;
  std::shared_ptr<FlightRing> flights() const override { return inside().flights(); }
  std::chrono::milliseconds extra_patience(int rank, const Call& call) const override;
  std::shared_ptr<HostRanks> host_ranks() override { return inside().host_ranks(); }

  bool has_failed() const override;
  Failure failure() const override;
  bool fail(const Failure& failure) noexcept override;
  bool fail_world(std::string_view cause) noexcept override;
  void pass_on_failure() noexcept override;
  void look_for_dead(const std::function<std::string(const std::string&)>& describe) override;
  void dump_flights(std::string_view cause) noexcept override { inside().dump_flights(cause); }

  /// Tells the ranks of this host. Other hosts are told when this is destroyed, or the process
  /// leaves MPI.
  void leave() noexcept override { levels_.leave(); }

  void before_look(Rest& rest) override { inside().before_look(rest); }
  void rest(Rest& rest) override { inside().rest(rest); }
  void end_rest(Rest& rest) override { inside().end_rest(rest); }
  void wake() override { inside().wake(); }
  void attach(std::weak_ptr<Member> member) override { inside().attach(std::move(member)); }
  void note_busy(bool is_busy) override { inside().note_busy(is_busy); }
  void advance_others() override { inside().advance_others(); }

 private:
  class CallTransfer;
  struct Round;

  internal::Link& flat() const { return levels_.flat->link(); }
  internal::Link& inside() const { return levels_.inside->link(); }
  bool has_gone(int rank) const;
  Steps exchange_calls(Round& round, CallRecord own);
  Steps begin(Call& call);
  Steps make_window(Call& call);
  Steps make_subgroup(Call& call);

  Levels levels_;
  const Member::Patience of_messages_;
  const std::shared_ptr<ReadCache> cache_;
  const uint64_t id_;                // equal on all ranks, different for each group
  std::map<int64_t, Round> rounds_;  // by sequence
  int64_t given_ = 0;                // calls after which the next one may be announced
  int64_t finished_ = 0;
};

}  // namespace tessera::internal::hosts
