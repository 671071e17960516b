#include "tessera/tests/support/rank_memory_link.h"

#include <condition_variable>
#include <deque>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/ops/empty_like.h>

#include "tessera/core/comm/group/group.h"
#include "tessera/core/comm/groups/call_record.h"
#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/groups/op_traits.h"
#include "tessera/core/comm/kernels/reduce_kernels.h"
#include "tessera/core/memory/private_memory.h"

namespace tessera::internal::testing {

/// A call that a rank has announced, and a copy of its input.
struct MemoryLink::Posted {
  CallRecord record;
  at::Tensor copy;
  at::Tensor own;
  std::vector<int64_t> given;
  std::vector<int64_t> taken;
};

namespace {

at::Tensor copy_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  at::Tensor copy = at::empty_like(tensor);
  copy_bytes(data_of(copy), data_of(tensor), static_cast<int64_t>(tensor.nbytes()));
  return copy;
}

/// A transfer whose only step is `step`.
class Step final : public Transfer {
 public:
  explicit Step(std::function<State()> step, std::function<void()> announce = nullptr)
      : step_(std::move(step)), announce_(std::move(announce)) {}
  void announce() override { announce_(); }
  State advance() override { return step_(); }
  std::vector<int> awaited() override { return {}; }

 private:
  const std::function<State()> step_;
  const std::function<void()> announce_;
};

void compute(const Collective& call, int rank, const std::vector<MemoryLink::Posted>& of) {
  const auto size = static_cast<int>(of.size());
  if (!traits_of(call.op).takes(rank, call.peer)) return;
  char* const output = data_of(call.output);
  const auto bytes = static_cast<int64_t>(call.output.nbytes());
  const int64_t share = bytes / size;
  std::vector<const char*> copies;
  for (const MemoryLink::Posted& one : of) copies.push_back(data_of(one.copy));
  if (traits_of(call.op).reduces) {
    const int64_t begin = call.op == Op::kReduceScatter ? call.slice * bytes : 0;
    for (const char*& copy : copies) copy += begin;
    return kernels::reduce(call.output.scalar_type(), call.reduce, copies.data(), size, &output, 1,
                           call.output.numel(), kernels::Stores::kCached, call.divisor, call.order);
  }
  char* to = output;
  for (int peer = 0; peer < size; ++peer) {
    const bool gives_all = call.op == Op::kBroadcast || call.op == Op::kScatter;
    if (gives_all && peer != call.peer) continue;
    int64_t begin = 0;
    int64_t part = gives_all ? bytes : share;
    if (call.op == Op::kScatter || call.op == Op::kAllToAll) begin = rank * part;
    if (const auto& given = of[static_cast<size_t>(peer)].given; !given.empty()) {
      const auto element = static_cast<int64_t>(call.output.element_size());
      begin = element * std::accumulate(given.begin(), given.begin() + rank, int64_t{0});
      part = element * given[static_cast<size_t>(rank)];
    }
    copy_bytes(to, copies[static_cast<size_t>(peer)] + begin, part);
    to += part;
  }
}

void compare_counts(const Link& link, const Call& call, const std::vector<MemoryLink::Posted>& of) {
  if (call.collective().input_counts.empty()) return;
  for (size_t giver = 0; giver < of.size(); ++giver) {
    for (size_t taker = 0; taker < of.size(); ++taker) {
      const int64_t given = of[giver].given[taker];
      const int64_t expected = of[taker].taken[giver];
      if (given == expected) continue;
      throw Fault{count_mismatch(link.name_of(static_cast<int>(giver)), given,
                                 link.name_of(static_cast<int>(taker)), expected, call.tag())};
    }
  }
}

}  // namespace

struct MemoryLink::World {
  const Origin origin;
  std::mutex mutex;  // guards everything but the members
  std::condition_variable changed;
  uint64_t changes = 0;
  std::optional<std::string> failure;
  int author = -1;
  std::vector<std::shared_ptr<FlightRing>> flights;
  std::mutex members_mutex;
  std::vector<std::pair<int, std::weak_ptr<Member>>> members;  // with the number of their rank

  void change() {
    ++changes;
    changed.notify_all();
  }
};

struct MemoryLink::Board {
  struct Sent {
    int from;
    CallRecord record;
    at::Tensor copy;
    bool is_taken = false;
  };
  explicit Board(std::vector<int> ranks)
      : numbers(std::move(ranks)),
        calls(numbers.size()),
        posted(numbers.size()),
        over(numbers.size()),
        left(numbers.size()),
        mail(numbers.size()),
        read(numbers.size()) {}

  const std::vector<int> numbers;                // of the ranks, in the world
  std::vector<std::map<int64_t, Posted>> calls;  // by rank, number
  std::vector<int64_t> posted;
  std::vector<int64_t> over;
  std::vector<bool> left;
  std::vector<std::deque<std::shared_ptr<Sent>>> mail;  // by receiver
  std::vector<size_t> read;
  std::map<int64_t, std::shared_ptr<Board>> subgroups;
  std::optional<Failure> failure;
};

namespace {

class Parts final : public RemoteMemory {
 public:
  Parts(std::function<std::string()> failure, std::vector<at::Tensor> parts)
      : failure_(std::move(failure)), parts_(std::move(parts)) {}
  std::string failure() const override { return failure_(); }
  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view /*tag*/, int64_t /*version*/) override {
    std::memmove(data_of(to), at(rank, begin_bytes), to.nbytes());
    return completed_work();
  }
  int64_t load(int rank, int64_t begin_bytes) override { return load_word(at(rank, begin_bytes)); }

 private:
  char* at(int rank, int64_t begin) const {
    return data_of(parts_[static_cast<size_t>(rank)]) + begin;
  }

  const std::function<std::string()> failure_;
  const std::vector<at::Tensor> parts_;
};

}  // namespace

MemoryLink::MemoryLink(std::shared_ptr<World> world, std::shared_ptr<Board> board, int rank)
    : world_(std::move(world)), board_(std::move(board)), rank_(rank) {}
MemoryLink::~MemoryLink() = default;

std::unique_lock<std::mutex> MemoryLink::lock() const {
  return std::unique_lock<std::mutex>(world_->mutex);
}
int MemoryLink::size() const { return static_cast<int>(board_->numbers.size()); }
const Origin& MemoryLink::origin() const { return world_->origin; }
at::Tensor MemoryLink::allocate(int64_t numel, at::ScalarType dtype) {
  check_allocate(numel, dtype);
  return allocate_private(numel, dtype);
}

bool MemoryLink::may_announce(const Call& /*call*/, int64_t under_way) const {
  return under_way < 4;
}

std::unique_ptr<Transfer> MemoryLink::prepare(Call& call) {
  const auto finish = [this, &call] {
    this->finish(call);
    return Transfer::State::kOver;
  };
  return std::make_unique<Step>(finish, [this, &call] { announce(call); });
}

void MemoryLink::announce(const Call& call) {
  const Collective& own = call.collective();
  const auto guard = lock();
  board_->calls[static_cast<size_t>(rank_)][call.sequence()] = {
      call.record(), traits_of(own.op).gives(rank_, own.peer) ? copy_of(own.input) : at::Tensor(),
      own.input, own.input_counts, own.output_counts};
  board_->posted[static_cast<size_t>(rank_)] = call.sequence() + 1;
  world_->change();
}

void MemoryLink::finish(Call& call) {
  std::vector<Posted> of;
  auto guard = lock();
  for (auto& calls : board_->calls) of.push_back(calls.at(call.sequence()));
  const Op op = call.collective().op;
  if (op == Op::kMakeWindow) {
    std::vector<at::Tensor> parts;
    for (const Posted& one : of) parts.push_back(one.own);
    const auto failure = [world = world_, board = board_] {
      const std::lock_guard guard(world->mutex);
      return board->failure.has_value() ? board->failure->cause : world->failure.value_or("");
    };
    call.made().memory = std::make_shared<Parts>(failure, std::move(parts));
  } else if (op == Op::kSubgroup) {
    auto& made = board_->subgroups[call.sequence()];
    std::vector<int> numbers;
    for (const int rank : call.ranks()) numbers.push_back(number_of(rank));
    if (made == nullptr) made = std::make_shared<Board>(std::move(numbers));
    const auto own = std::find(call.ranks().begin(), call.ranks().end(), rank_);
    if (own == call.ranks().end()) return;
    call.made().link = std::make_unique<MemoryLink>(world_, made, own - call.ranks().begin());
  } else if (op != Op::kBarrier) {
    guard.unlock();
    compare_counts(*this, call, of);
    compute(call.collective(), rank_, of);
  }
}

const CallRecord* MemoryLink::record_of(int rank, int64_t sequence) const {
  const auto guard = lock();
  const auto& calls = board_->calls[static_cast<size_t>(rank)];
  const auto found = calls.find(sequence);
  return found == calls.end() ? nullptr : &found->second.record;
}

bool MemoryLink::have_all_called(int64_t sequence) const {
  const auto guard = lock();
  return *std::min_element(board_->posted.begin(), board_->posted.end()) > sequence;
}

void MemoryLink::note_over(int64_t sequence) {
  const auto guard = lock();
  board_->over[static_cast<size_t>(rank_)] = sequence + 1;
  const int64_t all = *std::min_element(board_->over.begin(), board_->over.end());
  for (auto& calls : board_->calls) calls.erase(calls.begin(), calls.lower_bound(all));
}

void MemoryLink::abandon(std::unique_ptr<Transfer>, const Collective&) {}

std::unique_ptr<Transfer> MemoryLink::send(const Call& call) {
  const int to = call.record().signature.peer;
  auto sent = std::make_shared<Board::Sent>(
      Board::Sent{rank_, call.record(), copy_of(call.collective().input)});
  const auto guard = lock();
  board_->mail[static_cast<size_t>(to)].push_back(sent);
  world_->change();
  if (sent->copy.nbytes() <= static_cast<size_t>(ProcessGroup::kBufferedBytes)) return nullptr;
  return std::make_unique<Step>([this, sent] {
    const auto guard = lock();
    return sent->is_taken ? Transfer::State::kOver : Transfer::State::kMoving;
  });
}

std::optional<Arrival> MemoryLink::next_arrival() {
  const auto guard = lock();
  size_t& next = board_->read[static_cast<size_t>(rank_)];
  const auto& mail = board_->mail[static_cast<size_t>(rank_)];
  if (next == mail.size()) return std::nullopt;
  Board::Sent& sent = *mail[next++];
  return Arrival{sent.from, sent.record, &sent};
}

std::unique_ptr<Transfer> MemoryLink::receive(const Arrival& arrival, const Call& call) {
  const auto guard = lock();
  auto& sent = *static_cast<Board::Sent*>(arrival.place);
  const at::Tensor& output = call.collective().output;
  copy_bytes(data_of(output), data_of(sent.copy), static_cast<int64_t>(output.nbytes()));
  sent.is_taken = true;
  world_->change();
  return std::make_unique<Step>([] { return Transfer::State::kOver; });
}

int MemoryLink::number_of(int rank) const { return board_->numbers[static_cast<size_t>(rank)]; }
int64_t MemoryLink::called_by(int rank) const {
  const auto guard = lock();
  return board_->posted[static_cast<size_t>(rank)];
}
int64_t MemoryLink::finished_by(int rank) const {
  const auto guard = lock();
  return board_->over[static_cast<size_t>(rank)];
}
bool MemoryLink::has_left(int rank) const {
  const auto guard = lock();
  return board_->left[static_cast<size_t>(rank)];
}
RankFlight MemoryLink::flight_of(int rank) const {
  const FlightRing& ring = *world_->flights[static_cast<size_t>(number_of(rank))];
  return {.rank = number_of(rank), .begun = ring.begun(), .records = ring.last()};
}
std::shared_ptr<FlightRing> MemoryLink::flights() const {
  return world_->flights[static_cast<size_t>(number_of(rank_))];
}

Failure MemoryLink::failure() const {
  const auto guard = lock();
  if (board_->failure.has_value()) return *board_->failure;
  if (!world_->failure.has_value()) return {};
  for (size_t rank = 0; rank < board_->numbers.size(); ++rank) {
    if (board_->numbers[rank] == world_->author)
      return {.cause = *world_->failure, .author = static_cast<int>(rank)};
  }
  return {.cause = *world_->failure, .author = Failure::kOutsider};
}
bool MemoryLink::fail(const Failure& failure) noexcept {
  const auto guard = lock();
  if (board_->failure.has_value() || world_->failure.has_value()) return false;
  board_->failure = failure;
  world_->change();
  return true;
}
bool MemoryLink::fail_world(std::string_view cause) noexcept {
  const auto guard = lock();
  if (world_->failure.has_value()) return false;
  world_->failure = cause;
  world_->author = number_of(rank_);
  world_->change();
  return true;
}

void MemoryLink::leave() noexcept {
  const auto guard = lock();
  board_->left[static_cast<size_t>(rank_)] = true;
  world_->change();
}
void MemoryLink::attach(std::weak_ptr<Member> member) {
  const std::lock_guard guard(world_->members_mutex);
  world_->members.emplace_back(number_of(rank_), std::move(member));
}
void MemoryLink::advance_others() {
  std::vector<std::shared_ptr<Member>> own;
  {
    const std::lock_guard guard(world_->members_mutex);
    for (const auto& [number, weak] : world_->members) {
      auto member = number == number_of(rank_) ? weak.lock() : nullptr;
      if (member != nullptr) own.push_back(std::move(member));
    }
  }
  for (const auto& member : own) member->help();
}

void MemoryLink::before_look(Rest& rest) {
  const auto guard = lock();
  rest.seen = static_cast<uint32_t>(world_->changes);
}
void MemoryLink::rest(Rest& rest) {
  auto guard = lock();
  rest.is_slow = !world_->changed.wait_for(guard, std::chrono::milliseconds(20), [&] {
    return static_cast<uint32_t>(world_->changes) != rest.seen;
  });
}
void MemoryLink::wake() {
  const auto guard = lock();
  world_->change();
}

std::function<std::shared_ptr<ProcessGroup>(int rank)> memory_world(int size, Lane::Mode mode,
                                                                    Member::Patience patience) {
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto world = std::make_shared<MemoryLink::World>();
  const auto board = std::make_shared<MemoryLink::Board>(ranks);
  for (int rank = 0; rank < size; ++rank) world->flights.push_back(std::make_shared<FlightRing>());
  return [=](int rank) {
    return std::make_shared<Group>(std::make_unique<MemoryLink>(world, board, rank), "world", mode,
                                   patience);
  };
}

}  // namespace tessera::internal::testing
