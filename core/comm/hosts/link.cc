#include "tessera/core/comm/hosts/link.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/hosts/memory.h"
#include "tessera/core/comm/hosts/transfers.h"

namespace tessera::internal::hosts {
namespace {

// How much longer than the time-out a rank waits for one of another host, whose neighbours shall
// name it first, and for one of its own host that waits itself.
constexpr auto kForOtherHost = std::chrono::seconds(1);
constexpr auto kForWaiting = std::chrono::seconds(2);

constexpr const char* kTag = "calls";

/// Bytes of shared memory have no type of their own.
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

std::shared_ptr<Call> make_link(Member& member, const Call& call, const std::vector<int>& ranks) {
  return member.start({.op = Op::kSubgroup, .tag = call.tag()}, ranks);
}

}  // namespace

/// What the ranks have called.
struct Link::Round {
  std::vector<std::optional<CallRecord>> calls;  // by rank
  int64_t inside = 0;        // the number of the exchange among this host's calls
  bool is_complete = false;  // all are known, or two that differ
  Steps exchange;
};

class Link::CallTransfer final : public Transfer {
 public:
  CallTransfer(Link& link, Call& call) : link_(link), call_(call) {}

  void announce() override {
    Round& round = link_.rounds_[call_.sequence()];
    round.calls.resize(static_cast<size_t>(link_.size()));
    round.exchange = link_.exchange_calls(round, call_.record());
    round.exchange.go_on();
  }

  State advance() override {
    if (!std::exchange(has_begun_, true)) steps_ = link_.begin(call_);
    const bool is_over = steps_.go_on();
    if (!steps_.has_given()) return State::kMoving;
    link_.given_ = std::max(link_.given_, call_.sequence() + 1);
    return is_over ? State::kOver : State::kGiven;
  }

  std::vector<int> awaited() override {
    std::set<int> ranks;
    for (const auto& one : link_.levels_.awaited()) ranks.insert(one.rank);
    return {ranks.begin(), ranks.end()};
  }

 private:
  Link& link_;
  Call& call_;
  bool has_begun_ = false;
  Steps steps_;
};

Link::Link(Links links, HostLayout layout, const std::string& group, Member::Patience of_messages,
           std::shared_ptr<ReadCache> cache, uint64_t id)
    : levels_(std::move(links), std::move(layout), group, of_messages),
      of_messages_(of_messages),
      cache_(std::move(cache)),
      id_(id) {}

Link::~Link() = default;

Capabilities Link::can() const {
  return {.in_background = true,
          .one_sided_reads = flat().can().one_sided_reads,
          .crosses_network = true,
          .tree_sums = levels_.layout.sums_are_one_tree()};
}

at::Tensor Link::allocate(int64_t numel, at::ScalarType dtype) {
  return inside().allocate(numel, dtype);
}

std::unique_ptr<SharedBuffer> Link::make_shared_buffer(ProcessGroup& group, int64_t bytes,
                                                       std::string_view name) {
  group.barrier(absl::StrCat("make_shared_buffer '", std::string(name), "' of ", bytes, " bytes"));
  return nullptr;
}

bool Link::may_announce(const Call& call, int64_t /*under_way*/) const {
  return given_ == call.sequence();
}

std::unique_ptr<Transfer> Link::prepare(Call& call) {
  return std::make_unique<CallTransfer>(*this, call);
}

Steps Link::exchange_calls(Round& round, CallRecord own) {
  const HostLayout& layout = levels_.layout;
  const int locals = levels_.locals();
  const int host = levels_.host();
  constexpr auto kRecord = static_cast<int64_t>(sizeof(CallRecord));
  constexpr auto kSlice = static_cast<int64_t>(sizeof(int32_t));
  const at::Tensor of_locals = levels_.scratch(kRecord * locals, at::kByte);
  put_at(of_locals, kRecord * levels_.local(), own);
  const auto inside = start_all_gather(
      *levels_.inside, of_locals, part_of(of_locals, kRecord * levels_.local(), kRecord), kTag);
  round.inside = inside->sequence();
  co_await inside;
  for (int local = 0; local < locals; ++local) {
    const auto call = value_at<CallRecord>(of_locals, kRecord * local);
    round.calls[static_cast<size_t>(layout.rank_of(host, local))] = call;
    round.is_complete = round.is_complete || !call.is_same_call(own);
  }
  if (round.is_complete) co_return;  // they differ

  const int64_t of_host = kRecord + kSlice * locals;
  const at::Tensor of_hosts = levels_.scratch(of_host * levels_.hosts(), at::kByte);
  put_at(of_hosts, of_host * host, own);
  for (int local = 0; local < locals; ++local) {
    put_at(of_hosts, of_host * host + kRecord + kSlice * local,
           value_at<CallRecord>(of_locals, kRecord * local).slice);
  }
  co_await start_all_gather(*levels_.calls, of_hosts, part_of(of_hosts, of_host * host, of_host),
                            kTag);
  for (int other = 0; other < levels_.hosts(); ++other) {
    auto call = value_at<CallRecord>(of_hosts, of_host * other);
    for (int local = 0; local < locals; ++local) {
      call.slice = value_at<int32_t>(of_hosts, of_host * other + kRecord + kSlice * local);
      round.calls[static_cast<size_t>(layout.rank_of(other, local))] = call;
    }
  }
  round.is_complete = true;
}

void Link::go_on() {
  for (auto& [sequence, round] : rounds_) {
    if (!round.is_complete) round.exchange.go_on();
  }
}

bool Link::have_all_called(int64_t sequence) const {
  const auto round = rounds_.find(sequence);
  return round != rounds_.end() && round->second.is_complete;
}

const CallRecord* Link::record_of(int rank, int64_t sequence) const {
  const auto round = rounds_.find(sequence);
  if (round == rounds_.end()) return nullptr;
  const auto& call = round->second.calls[static_cast<size_t>(rank)];
  return call.has_value() ? &*call : nullptr;
}

void Link::note_over(int64_t sequence) {
  rounds_.erase(sequence);
  finished_ = sequence + 1;
}

/// The calls that it is made of keep their tensors. They fail with the group.
void Link::abandon(std::unique_ptr<Transfer> transfer, const Collective& /*collective*/) {
  transfer.reset();
  if (has_failed()) levels_.fail(failure().cause);
}

Steps Link::begin(Call& call) {
  const Op op = call.collective().op;
  if (op == Op::kMakeWindow) return make_window(call);
  if (op == Op::kSubgroup) return make_subgroup(call);
  StepContext context{levels_, call.collective(), {}, [this, sequence = call.sequence()] {
                        return finished_ == sequence;
                      }};
  for (const auto& other : rounds_.find(call.sequence())->second.calls) {
    context.slices.push_back(other->slice);
  }
  return steps_of(std::move(context));
}

/// If one host's ranks refuse the window, all do.
Steps Link::make_window(Call& call) {
  const at::Tensor own = call.collective().input;
  const Collective made{.op = Op::kMakeWindow, .output = own, .input = own, .tag = call.tag()};
  const std::shared_ptr<Call> inside = levels_.inside->start(made);
  co_await inside;
  constexpr int64_t kText = 480;
  const at::Tensor texts = levels_.scratch(kText * levels_.hosts(), at::kByte).zero_();
  const at::Tensor text = part_of(texts, kText * levels_.host(), kText);
  inside->made().problem.copy(data_of(text), kText - 1);
  co_await start_all_gather(*levels_.across, texts, text, "make_window");
  std::vector<std::string> problems;
  for (int host = 0; host < levels_.hosts(); ++host) {
    std::string problem = data_of(texts) + kText * host;
    const bool is_known = std::count(problems.begin(), problems.end(), problem) > 0;
    if (!problem.empty() && !is_known) problems.push_back(std::move(problem));
  }
  if (!problems.empty()) {
    call.made().problem = absl::StrJoin(problems, "\n");
    co_return;
  }
  const std::shared_ptr<Call> flat = levels_.flat->start(made);
  co_yield Steps::Given();
  co_await flat;
  // Of each unit a part as large as this from every rank of another host: for one that some ranks
  // still read, one that is read, one that comes and one that is asked for.
  constexpr int64_t kUnits = 4;
  const int64_t others = size() - levels_.locals();
  cache_->reserve(kUnits * others * static_cast<int64_t>(own.nbytes()));
  const uint64_t number = hash_of_tag(absl::StrCat(id_, "/", call.sequence()));
  call.made().memory =
      std::make_shared<Memory>(levels_.layout, rank(), *call.group(), inside->made().memory,
                               flat->made().memory, cache_, static_cast<int64_t>(number >> 1));
}

Steps Link::make_subgroup(Call& call) {
  const std::vector<int> ranks = call.ranks();
  const HostLayout layout = levels_.layout.of(ranks);
  const bool is_in = std::count(ranks.begin(), ranks.end(), rank()) > 0;
  std::vector<int> locals;  // of this host
  for (const int rank : ranks) {
    if (levels_.is_here(rank)) locals.push_back(levels_.layout.local_of(rank));
  }
  if (!layout.is_two_level()) {
    const bool is_inside = layout.hosts() == 1;
    if (is_inside && locals.empty()) co_return;
    const std::shared_ptr<Call> made = is_inside ? make_link(*levels_.inside, call, locals)
                                                 : make_link(*levels_.moves, call, ranks);
    co_await made;
    call.made().link = std::move(made->made().link);
    co_return;
  }
  Links links;
  if (!locals.empty()) {
    for (auto* const link : {&links.inside, &links.last}) {
      const std::shared_ptr<Call> made = make_link(*levels_.inside, call, locals);
      co_await made;
      *link = std::move(made->made().link);
    }
  }
  for (auto* const link : {&links.flat, &links.moves}) {
    const std::shared_ptr<Call> made = make_link(*levels_.moves, call, ranks);
    co_await made;
    *link = std::move(made->made().link);
  }
  for (int local = 0; local < layout.ranks_per_host(); ++local) {
    std::vector<int> column = layout.column(local);
    for (int& rank : column) rank = ranks[static_cast<size_t>(rank)];
    for (auto* const link : {&links.calls, &links.across}) {
      const std::shared_ptr<Call> made = make_link(*levels_.moves, call, column);
      co_await made;
      if (made->made().link != nullptr) *link = std::move(made->made().link);
    }
  }
  if (!is_in) co_return;
  const std::string name =
      absl::StrCat(*call.group(), "/", call.tag().substr(0, call.tag().rfind(" [")));
  call.made().link = std::make_unique<Link>(std::move(links), layout, name, of_messages_, cache_,
                                            hash_of_tag(absl::StrCat(id_, "/", call.sequence())));
}

std::string Link::activity_of(int rank) const {
  return levels_.is_here(rank) ? inside().activity_of(levels_.layout.local_of(rank))
                               : flat().activity_of(rank);
}

RankFlight Link::flight_of(int rank) const {
  return levels_.is_here(rank) ? inside().flight_of(levels_.layout.local_of(rank))
                               : flat().flight_of(rank);
}

/// Until all ranks of this host have called, those of other hosts are not reported as missing.
int64_t Link::called_by(int rank) const {
  const auto round = rounds_.find(finished_);
  if (round == rounds_.end()) return finished_;
  const HostLayout& layout = levels_.layout;
  const bool has_come =
      record_of(rank, finished_) != nullptr ||
      (levels_.is_here(rank)
           ? inside().called_by(layout.local_of(rank)) > round->second.inside
           : record_of(this->rank(), finished_) == nullptr ||
                 levels_.calls->link().called_by(layout.host_of(rank)) > finished_);
  return has_come ? finished_ + 1 : finished_;
}

/// A rank has finished what this one has, which waits for it. Of one of another host that has left
/// its last exchange of calls tells.
int64_t Link::finished_by(int rank) const {
  const bool has_exchanged = have_all_called(finished_) || !has_left(rank);
  return levels_.is_here(rank) || has_exchanged
             ? finished_
             : levels_.calls->link().finished_by(levels_.layout.host_of(rank));
}

/// Once all have called, who has left is missed only if its data has not come. Of another host's
/// rank only its column knows. Why it left has come before the word of `flat`.
bool Link::has_left(int rank) const {
  if (have_all_called(finished_)) return has_gone(rank);
  const HostLayout& layout = levels_.layout;
  if (levels_.is_here(rank)) return inside().has_left(layout.local_of(rank));
  return layout.local_of(rank) == levels_.local() && flat().has_left(rank) &&
         levels_.calls->link().has_left(layout.host_of(rank));
}

bool Link::has_gone(int rank) const {
  const bool has_left = levels_.is_here(rank) ? inside().has_left(levels_.layout.local_of(rank))
                                              : flat().has_left(rank);
  if (!has_left) return false;
  const std::vector<Member::Awaited> awaited = levels_.awaited();
  return std::any_of(awaited.begin(), awaited.end(),
                     [rank](const auto& one) { return one.rank == rank && one.has_gone; });
}

/// A rank of this host that waits, in another call or in this one once all have called, may keep
/// this one waiting only because another one does not come there: that is the cause which all
/// shall hear.
std::chrono::milliseconds Link::extra_patience(int rank, const Call& call) const {
  if (!levels_.is_here(rank)) return kForOtherHost;
  if (absl::StartsWith(activity_of(rank), "is stopped")) return {};
  const bool waits = call.is_compared() || is_in_other_call(rank, call);
  return waits ? kForWaiting : std::chrono::milliseconds();
}

bool Link::has_failed() const { return flat().has_failed() || inside().has_failed(); }

/// The ranks of this host hear of each other's failures sooner. Then what `flat` says, which is
/// more exact, is still on its way.
Failure Link::failure() const {
  if (flat().has_failed()) return flat().failure();
  Failure failure = inside().failure();
  if (failure.author >= 0) failure.author = levels_.layout.rank_of(levels_.host(), failure.author);
  return failure;
}

bool Link::fail(const Failure& failure) noexcept {
  const bool is_first = !has_failed() && flat().fail(failure);
  pass_on_failure();
  return is_first;
}

/// All ranks know the cause before they can see that this one leaves because of it. That a rank of
/// this host has died fails the world, whose other groups may wait for it, too.
void Link::pass_on_failure() noexcept {
  const Failure known = failure();
  if (known.author != Failure::kNobody || !inside().host_ranks()->lost_rank().empty()) {
    flat().fail_world(known.cause);
  } else {
    flat().fail(known);
  }
  inside().fail({.cause = known.cause, .calls = kEveryCall});
}

/// Which tells the ranks of this host, too.
bool Link::fail_world(std::string_view cause) noexcept { return flat().fail_world(cause); }

void Link::look_for_dead(const std::function<std::string(const std::string&)>& describe) {
  inside().look_for_dead(describe);
}

}  // namespace tessera::internal::hosts
