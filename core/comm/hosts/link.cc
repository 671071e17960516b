#include "tessera/core/comm/hosts/link.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/transfers.h"

namespace tessera::internal::hosts {
namespace {

// How much longer than the time-out this rank waits for another rank before it fails the call. If
// that rank is on another host, the ranks of its host can name it first in this time.
constexpr auto kForOtherHost = std::chrono::seconds(1);
// If that rank is on this host and is itself waiting, it can name the rank that it waits for.
constexpr auto kForWaiting = std::chrono::seconds(2);

constexpr const char* kTag = "calls";

/// Returns the T that lies at byte `begin` of `bytes`. It is copied, because shared memory holds
/// bytes without a type.
template <typename T>
T value_at(const at::Tensor& bytes, int64_t begin) {
  T value;
  std::memcpy(&value, data_of(bytes) + begin, sizeof(T));
  return value;
}

template <typename T>
void put_at(const at::Tensor& bytes, int64_t begin, const T& value) {
  std::memcpy(data_of(bytes) + begin, &value, sizeof(T));
}

/// See Note [Calls of two levels].
class Link final : public internal::Link {
 public:
  Link(Links links, const std::string& group, GroupSetting setting)
      : subgroups_(std::move(links), setting.layout, group, setting.of_messages),
        setting_(std::move(setting)) {}

  int rank() const override { return subgroups_.rank(); }
  int size() const override { return subgroups_.layout.ranks(); }
  std::string_view backend() const override { return "hosts"; }
  Capabilities can() const override {
    return {.in_background = true,
            .one_sided_reads = flat().can().one_sided_reads,
            .crosses_network = true,
            .tree_sums = subgroups_.layout.sums_are_one_tree()};
  }
  const Origin& origin() const override { return flat().origin(); }
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override {
    return inside().allocate(numel, dtype);
  }
  bool is_in_place(const at::Tensor& /*tensor*/) const override { return true; }
  bool wants_thread() const override { return true; }
  std::unique_ptr<SharedBuffer> make_shared_buffer(ProcessGroup& group, int64_t bytes,
                                                   std::string_view name) override {
    group.barrier(
        absl::StrCat("make_shared_buffer '", std::string(name), "' of ", bytes, " bytes"));
    return nullptr;
  }

  bool may_announce(const Call& call, int64_t /*under_way*/) const override {
    return given_ == call.sequence();
  }
  std::unique_ptr<Transfer> prepare(Call& call) override {
    return std::make_unique<CallTransfer>(*this, call);
  }
  const CallRecord* record_of(int rank, int64_t sequence) const override {
    const auto round = rounds_.find(sequence);
    if (round == rounds_.end()) return nullptr;
    const auto& call = round->second.calls[static_cast<size_t>(rank)];
    return call.has_value() ? &*call : nullptr;
  }
  bool have_all_called(int64_t sequence) const override {
    const auto round = rounds_.find(sequence);
    return round != rounds_.end() && round->second.is_complete;
  }
  void note_over(int64_t sequence) override {
    rounds_.erase(sequence);
    finished_ = sequence + 1;
  }
  /// Destroys `transfer`, although the calls on the inner links that it has started may still run.
  /// These calls keep their tensors alive, and fail when the group fails.
  void abandon(std::unique_ptr<Transfer> transfer, const Collective& /*collective*/) override {
    transfer.reset();
    if (has_failed()) subgroups_.fail(failure().cause);
  }

  Member* messages() override { return subgroups_.flat.get(); }
  std::unique_ptr<Transfer> send(const Call& /*call*/) override { return nullptr; }
  std::optional<Arrival> next_arrival() override { return std::nullopt; }
  std::unique_ptr<Transfer> receive(const Arrival& /*arrival*/, const Call& /*call*/) override {
    return nullptr;
  }
  void go_on() override {
    for (auto& [sequence, round] : rounds_) {
      if (!round.is_complete) round.exchange.go_on();
    }
  }

  int number_of(int rank) const override { return flat().number_of(rank); }
  std::string place_of(int rank) const override { return flat().place_of(rank); }
  std::string activity_of(int rank) const override {
    return is_here(rank) ? inside().activity_of(local_of(rank)) : flat().activity_of(rank);
  }
  int64_t called_by(int rank) const override;
  int64_t finished_by(int rank) const override;
  bool has_left(int rank) const override;
  RankFlight flight_of(int rank) const override {
    return is_here(rank) ? inside().flight_of(local_of(rank)) : flat().flight_of(rank);
  }
  std::shared_ptr<FlightRing> flights() const override { return inside().flights(); }
  std::chrono::milliseconds extra_patience(int rank, const Call& call) const override;
  std::shared_ptr<HostRanks> host_ranks() override { return inside().host_ranks(); }

  bool has_failed() const override { return flat().has_failed() || inside().has_failed(); }
  Failure failure() const override;
  bool fail(const Failure& failure) noexcept override {
    const bool is_first = !has_failed() && flat().fail(failure);
    pass_on_failure();
    return is_first;
  }
  /// flat().fail_world() also fails the ranks of this host.
  bool fail_world(std::string_view cause) noexcept override { return flat().fail_world(cause); }
  void pass_on_failure() noexcept override;
  void look_for_dead(const std::function<std::string(const std::string&)>& describe) override {
    inside().look_for_dead(describe);
  }
  void dump_flights(std::string_view cause) noexcept override { inside().dump_flights(cause); }

  /// Tells the ranks of this host that this rank leaves. Other hosts see it when this link is
  /// destroyed, or when MPI ends.
  void leave() noexcept override { subgroups_.leave(); }

  void before_look(Rest& rest) override { inside().before_look(rest); }
  void rest(Rest& rest) override { inside().rest(rest); }
  void end_rest(Rest& rest) override { inside().end_rest(rest); }
  void wake() override { inside().wake(); }
  void attach(std::weak_ptr<Member> member) override { inside().attach(std::move(member)); }
  void note_busy(bool is_busy) override { inside().note_busy(is_busy); }
  void advance_others() override { inside().advance_others(); }

 private:
  /// What is known about the calls that all ranks made with one sequence number.
  struct Round {
    std::vector<std::optional<CallRecord>> calls;  // by rank
    // The number that the exchange of these calls has on the link `inside`.
    int64_t inside = 0;
    bool is_complete = false;  // all calls are known, or two are known to differ
    CollectiveTask exchange;
  };

  class CallTransfer final : public Transfer {
   public:
    CallTransfer(Link& link, Call& call) : link_(link), call_(call) {}

    void announce() override {
      Round& round = link_.rounds_[call_.sequence()];
      round.calls.resize(static_cast<size_t>(link_.size()));
      round.exchange = link_.exchange_calls(round, call_.record());
      round.exchange.go_on();
    }

    State advance() override {
      if (!std::exchange(has_begun_, true)) task_ = link_.begin(call_);
      const bool is_over = task_.go_on();
      if (!task_.has_given()) return State::kMoving;
      link_.given_ = std::max(link_.given_, call_.sequence() + 1);
      return is_over ? State::kOver : State::kGiven;
    }

    std::vector<int> awaited() override {
      std::set<int> ranks;
      for (const auto& one : link_.subgroups_.awaited()) ranks.insert(one.rank);
      return {ranks.begin(), ranks.end()};
    }

   private:
    Link& link_;
    Call& call_;
    bool has_begun_ = false;
    CollectiveTask task_;
  };

  internal::Link& flat() const { return subgroups_.flat->link(); }
  internal::Link& inside() const { return subgroups_.inside->link(); }
  bool is_here(int rank) const { return subgroups_.is_here(rank); }
  int local_of(int rank) const { return subgroups_.layout.local_of(rank); }
  bool has_gone(int rank) const;
  CollectiveTask exchange_calls(Round& round, CallRecord own);
  CollectiveTask begin(Call& call);

  HostSubgroups subgroups_;
  const GroupSetting setting_;
  std::map<int64_t, Round> rounds_;  // by sequence
  int64_t given_ = 0;                // the number of the call that may be announced next
  int64_t finished_ = 0;
};

CollectiveTask Link::exchange_calls(Round& round, CallRecord own) {
  const HostLayout& layout = subgroups_.layout;
  const int locals = subgroups_.locals();
  const int host = subgroups_.host();
  constexpr auto kRecord = static_cast<int64_t>(sizeof(CallRecord));
  constexpr auto kSlice = static_cast<int64_t>(sizeof(int32_t));
  const at::Tensor of_locals = subgroups_.scratch(kRecord * locals, at::kByte);
  put_at(of_locals, kRecord * subgroups_.local(), own);
  const auto inside =
      start_all_gather(*subgroups_.inside, of_locals,
                       part_of(of_locals, kRecord * subgroups_.local(), kRecord), kTag);
  round.inside = inside->sequence();
  co_await inside;
  for (int local = 0; local < locals; ++local) {
    const auto call = value_at<CallRecord>(of_locals, kRecord * local);
    round.calls[static_cast<size_t>(layout.rank_of(host, local))] = call;
    round.is_complete = round.is_complete || !call.is_same_call(own);
  }
  if (round.is_complete) co_return;  // calls inside this host differ

  const int64_t of_host = kRecord + kSlice * locals;
  const at::Tensor of_hosts = subgroups_.scratch(of_host * subgroups_.hosts(), at::kByte);
  put_at(of_hosts, of_host * host, own);
  for (int local = 0; local < locals; ++local) {
    put_at(of_hosts, of_host * host + kRecord + kSlice * local,
           value_at<CallRecord>(of_locals, kRecord * local).slice);
  }
  co_await start_all_gather(*subgroups_.calls, of_hosts, part_of(of_hosts, of_host * host, of_host),
                            kTag);
  for (int other = 0; other < subgroups_.hosts(); ++other) {
    auto call = value_at<CallRecord>(of_hosts, of_host * other);
    for (int local = 0; local < locals; ++local) {
      call.slice = value_at<int32_t>(of_hosts, of_host * other + kRecord + kSlice * local);
      round.calls[static_cast<size_t>(layout.rank_of(other, local))] = call;
    }
  }
  round.is_complete = true;
}

CollectiveTask Link::begin(Call& call) {
  const Op op = call.collective().op;
  if (op == Op::kMakeWindow) return make_window(subgroups_, setting_, call);
  if (op == Op::kSubgroup) return make_subgroup(subgroups_, setting_, call);
  CollectiveContext context{subgroups_, call.collective(), {}, [this, sequence = call.sequence()] {
                              return finished_ == sequence;
                            }};
  for (const auto& other : rounds_.find(call.sequence())->second.calls) {
    context.slices.push_back(other->slice);
  }
  return collective_task(std::move(context));
}

/// Returns how many calls `rank` has made, as far as this rank knows. Until all ranks of this host
/// have made the current call, a rank of another host counts as having made it, so that it is not
/// reported as missing.
int64_t Link::called_by(int rank) const {
  const auto round = rounds_.find(finished_);
  if (round == rounds_.end()) return finished_;
  const bool has_come =
      record_of(rank, finished_) != nullptr ||
      (is_here(rank)
           ? inside().called_by(local_of(rank)) > round->second.inside
           : record_of(this->rank(), finished_) == nullptr ||
                 subgroups_.calls->link().called_by(subgroups_.layout.host_of(rank)) > finished_);
  return has_come ? finished_ + 1 : finished_;
}

/// Returns how many calls `rank` has finished: as many as this rank has finished, because this rank
/// could not have finished them without the other ranks' parts. If `rank` is on another host and
/// has left, the last exchange of calls may tell the number instead.
int64_t Link::finished_by(int rank) const {
  const bool has_exchanged = have_all_called(finished_) || !has_left(rank);
  return is_here(rank) || has_exchanged
             ? finished_
             : subgroups_.calls->link().finished_by(subgroups_.layout.host_of(rank));
}

/// Returns true if the current call cannot complete because `rank` has left. Once all ranks have
/// made this call, returns true only if data of `rank` has not come. Before that, returns true for
/// a rank of another host only if that rank is in this rank's column, and only if both `flat` and
/// `calls` show that it has left. If it leaves because of a failure, the failure arrives first.
bool Link::has_left(int rank) const {
  if (have_all_called(finished_)) return has_gone(rank);
  if (is_here(rank)) return inside().has_left(local_of(rank));
  return local_of(rank) == subgroups_.local() && flat().has_left(rank) &&
         subgroups_.calls->link().has_left(subgroups_.layout.host_of(rank));
}

bool Link::has_gone(int rank) const {
  const bool has_left = is_here(rank) ? inside().has_left(local_of(rank)) : flat().has_left(rank);
  if (!has_left) return false;
  const std::vector<AwaitedRank> awaited = subgroups_.awaited();
  return std::any_of(awaited.begin(), awaited.end(),
                     [rank](const auto& one) { return one.rank == rank && one.has_gone; });
}

/// Returns how long this rank waits for `rank` after the time-out. If `rank` is on this host and is
/// itself waiting (in another call, or in this one after all have called), a third rank may be the
/// cause. The extra time lets `rank` report that cause first.
std::chrono::milliseconds Link::extra_patience(int rank, const Call& call) const {
  if (!is_here(rank)) return kForOtherHost;
  if (absl::StartsWith(activity_of(rank), "is stopped")) return {};
  const bool waits = call.is_compared() || is_in_other_call(rank, call);
  return waits ? kForWaiting : std::chrono::milliseconds();
}

/// Prefers the failure of `flat`, which is more exact. A failure of a rank of this host is known
/// through `inside` before it arrives through `flat`.
Failure Link::failure() const {
  if (flat().has_failed()) return flat().failure();
  Failure failure = inside().failure();
  if (failure.author >= 0)
    failure.author = subgroups_.layout.rank_of(subgroups_.host(), failure.author);
  return failure;
}

/// Tells all ranks the cause of the failure, before they can see that this rank leaves because of
/// the failure. The death of a rank of this host fails the world, because the world's other groups
/// may wait for it, too.
void Link::pass_on_failure() noexcept {
  const Failure known = failure();
  if (known.author != Failure::kNobody || !inside().host_ranks()->lost_rank().empty()) {
    flat().fail_world(known.cause);
  } else {
    flat().fail(known);
  }
  inside().fail({.cause = known.cause, .calls = kEveryCall});
}

}  // namespace

uint64_t GroupSetting::id_of_made(int64_t sequence) const {
  return hash_of_tag(absl::StrCat(id, "/", sequence));
}

std::unique_ptr<internal::Link> make_link(Links links, const std::string& group,
                                          GroupSetting setting) {
  return std::make_unique<Link>(std::move(links), group, std::move(setting));
}

}  // namespace tessera::internal::hosts
