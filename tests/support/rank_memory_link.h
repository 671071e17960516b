#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/comm/group/member.h"

namespace tessera::internal::testing {

/// The simplest Link: ranks are threads of one process and copy their inputs. A rank's input is
/// copied when it announces the call, and every rank computes its result from the copies when all
/// are there. It shows what a Group needs of a link, and that it needs no more.
class MemoryLink final : public Link {
 public:
  struct Board;  ///< shared by the ranks of a group
  struct World;  ///< shared by the groups of a world
  struct Posted;

  MemoryLink(std::shared_ptr<World> world, std::shared_ptr<Board> board, int rank);
  ~MemoryLink() override;

  int rank() const override { return rank_; }
  int size() const override;
  std::string_view backend() const override { return "memory"; }
  Capabilities can() const override { return {.one_sided_reads = true}; }
  const Origin& origin() const override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  bool is_in_place(const at::Tensor& /*tensor*/) const override { return true; }

  bool may_announce(const Call& call, int64_t under_way) const override;
  std::unique_ptr<Transfer> prepare(Call& call) override;
  const CallRecord* record_of(int rank, int64_t sequence) const override;
  bool have_all_called(int64_t sequence) const override;
  void note_over(int64_t sequence) override;
  void abandon(std::unique_ptr<Transfer> transfer, const Collective& collective) override;

  std::unique_ptr<Transfer> send(const Call& call) override;
  std::optional<Arrival> next_arrival() override;
  std::unique_ptr<Transfer> receive(const Arrival& arrival, const Call& call) override;

  int number_of(int rank) const override;
  int64_t called_by(int rank) const override;
  int64_t finished_by(int rank) const override;
  bool has_left(int rank) const override;
  RankFlight flight_of(int rank) const override;
  std::shared_ptr<FlightRing> flights() const override;

  bool has_failed() const override { return !failure().cause.empty(); }
  Failure failure() const override;
  bool fail(const Failure& failure) noexcept override;
  bool fail_world(std::string_view cause) noexcept override;

  void leave() noexcept override;
  void attach(std::weak_ptr<Member> member) override;

  void before_look(Rest& rest) override;
  void rest(Rest& rest) override;
  void wake() override;
  void advance_others() override;

 private:
  std::unique_lock<std::mutex> lock() const;
  void announce(const Call& call);
  void finish(Call& call);

  const std::shared_ptr<World> world_;
  const std::shared_ptr<Board> board_;
  const int rank_;
};

/// Returns a function that makes each rank's world: RankThreadOptions::make_world.
std::function<std::shared_ptr<ProcessGroup>(int rank)> memory_world(
    int size, Lane::Mode mode = Lane::Mode::kInline,
    Member::Patience patience = {std::chrono::seconds(20)});

}  // namespace tessera::internal::testing
