#include "tessera/core/comm/mpi/windows.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/empty.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/progress.h"
#include "tessera/window.h"

namespace tessera::internal::mpi {
namespace {

// The size of a part of a large read, and how many parts may be under way from one owner. Together
// these parts are what a 10 Gbit/s link carries in half a millisecond. See Note [Reads in parts].
constexpr int64_t kPartBytes = 4 * Exchange::kUnaskedBytes;
constexpr int kPartsUnderWay = 3;
constexpr auto kLong = std::chrono::seconds(1);

class Memory final : public RemoteMemory {
 public:
  Memory(std::shared_ptr<Windows> windows, const Call& made_by)
      : windows_(std::move(windows)),
        number_(made_by.sequence()),
        own_(made_by.collective().input),
        caller_(made_by.caller()) {}

  ~Memory() override {
    Progress::instance().post([windows = windows_, number = number_] {
      windows->ranks().world().guard([&] { windows->close(number); });
    });
  }

  std::string failure() const override { return ranks().failure().cause; }

  std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                             std::string_view tag, int64_t /*version*/) override {
    const auto bytes = static_cast<int64_t>(to.nbytes());
    if (rank != ranks().rank()) return ask("read", rank, {number_, begin_bytes, bytes, 0}, to, tag);
    std::memmove(data_of(to), data_of(own_) + begin_bytes, to.nbytes());
    return completed_work();
  }

  int64_t load(int rank, int64_t begin_bytes) override {
    if (rank == ranks().rank()) return load_word(data_of(own_) + begin_bytes);
    const at::Tensor word = at::empty({1}, at::kLong);
    ask("load", rank, {number_, begin_bytes, static_cast<int64_t>(sizeof(int64_t)), 1}, word, "")
        ->wait();
    return *word.const_data_ptr<int64_t>();
  }

 private:
  const Ranks& ranks() const { return windows_->ranks(); }

  std::shared_ptr<Call> ask(const char* name, int owner, const ReadRequest& request,
                            const at::Tensor& to, std::string_view tag) const {
    auto call = std::make_shared<Call>(
        caller_,
        Call::Form{
            .collective = {.op = Op::kRecv, .output = to, .input = to, .peer = owner, .tag = tag},
            .has_thread = true,
            .name = name},
        /*flights=*/nullptr);
    const bool is_posted = Progress::instance().post([windows = windows_, call, owner, request] {
      windows->ranks().world().guard([&] { windows->read(call, owner, request); });
      if (windows->ranks().has_failed()) call->fail(windows->ranks().failure().cause);
    });
    if (!is_posted) call->fail(kProcessEnds);
    return call;
  }

  const std::shared_ptr<Windows> windows_;
  const int64_t number_;
  const at::Tensor own_;
  const std::shared_ptr<const Call::Caller> caller_;
};

}  // namespace

// The owner's side.

void Windows::open(int64_t number, at::Tensor own) {
  // A group that has failed serves no window (advance()), and peers no longer report that they
  // have closed theirs.
  if (ranks_->has_failed()) return;
  Served& served = served_[number];
  served.memory = std::move(own);
  for (int rank = 0; rank < ranks_->size(); ++rank) served.users.insert(rank);
}

bool Windows::drop_user(int rank, int64_t number) {
  const auto found = served_.find(number);
  const bool was_user = found != served_.end() && found->second.users.erase(rank) != 0;
  if (was_user && found->second.users.empty()) served_.erase(found);
  return was_user;
}

void Windows::close(int64_t number) {
  if (!drop_user(ranks_->rank(), number)) return;
  Envelope closed = ranks_->envelope(Envelope::Kind::kClosed);
  closed.number = number;
  ranks_->send_to_others(closed);
}

std::vector<int64_t> Windows::numbers() const {
  std::vector<int64_t> numbers;
  for (const auto& [number, served] : served_) numbers.push_back(number);
  return numbers;
}

void Windows::close_all() {
  for (const int64_t number : numbers()) close(number);
}

void Windows::note_ended(int rank) {
  for (const int64_t number : numbers()) drop_user(rank, number);
}

bool Windows::is_asked() const {
  return std::any_of(served_.begin(), served_.end(), [this](const auto& entry) {
    const std::set<int>& users = entry.second.users;
    return users.size() > users.count(ranks_->rank());
  });
}

void Windows::answer(int reader, const Envelope& request) {
  ReadRequest asked;
  std::memcpy(&asked, request.payload(), sizeof(asked));
  const auto found = served_.find(asked.window);
  if (found == served_.end()) return;  // after a failure of the group no window is served
  Envelope answer = ranks_->envelope(Envelope::Kind::kAnswer);
  answer.number = request.number;
  const at::Tensor& memory = found->second.memory;
  const char* const begin = data_of(memory) + asked.begin_bytes;
  answer.data_bytes = asked.bytes;
  World& world = ranks_->world();
  if (asked.is_word != 0) {
    const int64_t word = load_word(begin);
    std::memcpy(answer.payload(), &word, sizeof(word));
  } else if (Envelope::holds(asked.bytes)) {
    std::memcpy(answer.payload(), begin, static_cast<size_t>(asked.bytes));
  } else {
    answer.data_tag = world.communicator().draw_tag();
  }
  ranks_->send(answer, reader);
  if (Envelope::holds(asked.bytes)) return;
  auto sent = std::make_shared<PairExchange>(world.communicator(), ranks_->world_rank(reader),
                                             answer.data_tag, memory);
  sent->exchange.send(0, begin, asked.bytes, Exchange::kUnaskedBytes);
  world.keep({sent, &sent->exchange});
}

// The reader's side.

char* Windows::Part::target() const { return data_of(read->to) + begin_bytes; }

void Windows::read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request) {
  if (ranks_->has_failed()) return call->fail(ranks_->failure().cause);
  owners_[owner].waiting.push_back(
      std::make_shared<Read>(Read{call, call->collective().output, owner, request}));
  // A small read is requested at once, ahead of the parts of large reads: it may be of a word for
  // which this rank waits.
  if (Envelope::holds(request.bytes)) return ask_for_part(owners_[owner].waiting.back());
  ask(owner);
}

/// Requests parts from `owner` until kPartsUnderWay of them are under way or none is left.
void Windows::ask(int owner) {
  Owner& asked = owners_[owner];
  while (asked.open < kPartsUnderWay && !asked.waiting.empty()) {
    ask_for_part(asked.waiting.front());
  }
}

void Windows::ask_for_part(std::shared_ptr<Read> read) {
  const int64_t begin = read->asked_bytes;
  const int64_t bytes = std::min(kPartBytes, read->request.bytes - begin);
  read->asked_bytes += bytes;
  ReadRequest request = read->request;
  request.begin_bytes += begin;
  request.bytes = bytes;
  const int64_t number = ++last_;
  Envelope envelope = ranks_->envelope(Envelope::Kind::kRead);
  envelope.number = number;
  std::memcpy(envelope.payload(), &request, sizeof(request));
  ranks_->send(envelope, read->owner);
  Owner& asked = owners_[read->owner];
  ++asked.open;
  if (read->asked_bytes == read->request.bytes) std::erase(asked.waiting, read);
  parts_[number] = std::make_shared<Part>(Part{std::move(read), begin, bytes, nullptr});
}

void Windows::take(int owner, const Envelope& answer) {
  World& world = ranks_->world();
  const auto found = parts_.find(answer.number);
  if (found == parts_.end() || found->second->read->owner != owner) {
    return world.drain(ranks_->world_rank(owner), answer);
  }
  const std::shared_ptr<Part> part = found->second;
  if (Envelope::holds(part->bytes)) {
    std::memcpy(part->target(), answer.payload(), static_cast<size_t>(part->bytes));
    parts_.erase(found);
    return finish(*part);
  }
  part->data = std::make_shared<PairExchange>(world.communicator(), ranks_->world_rank(owner),
                                              answer.data_tag, part->read->to);
  part->data->exchange.receive(0, part->target(), part->bytes, Exchange::kUnaskedBytes);
}

/// Called when the data of `part` has arrived.
void Windows::finish(const Part& part) {
  Read& read = *part.read;
  read.come_bytes += part.bytes;
  if (read.come_bytes == read.request.bytes) read.call->finish();
  --owners_[read.owner].open;
  ask(read.owner);
}

void Windows::advance(const internal::Link& link, Call::Clock::time_point now) {
  if (ranks_->has_failed()) {
    served_.clear();
    return end_reads(ranks_->failure().cause);
  }
  std::vector<std::shared_ptr<Part>> over;
  std::erase_if(parts_, [&over](const auto& entry) {
    const auto& data = entry.second->data;
    if (data == nullptr || !data->exchange.is_over()) return false;
    over.push_back(entry.second);
    return true;
  });
  for (const auto& part : over) finish(*part);
  for (const auto& [number, part] : parts_) {
    look_for_late(*part->read, part->data != nullptr, link, now);
  }
  for (const auto& [owner, wanted] : owners_) {
    for (const auto& read : wanted.waiting) look_for_late(*read, false, link, now);
  }
}

void Windows::look_for_late(const Read& read, bool is_answered, const internal::Link& link,
                            Call::Clock::time_point now) const {
  const Member::Patience patience = ranks_->world().patience();
  const auto waited = read.call->waited(now);
  // Record the read in the flight recorder, where others see what this rank waits for.
  if (waited >= kLong) read.call->record(ranks_->world().flights());
  if (waited >= patience.timeout) {
    const std::string& tag = read.call->tag();
    throw Fault{absl::StrCat("timed out: rank ", ranks_->world().rank(), " waited ",
                             patience.timeout.count(), " ms for ", link.name_of(read.owner),
                             link.place_of(read.owner), " to ",
                             is_answered ? "send the data of a " : "answer a ", read.call->name(),
                             tag.empty() ? "" : absl::StrCat(" of '", tag, "'")),
                read.owner};
  }
  if (read.call->is_to_be_reported(now, patience.report_after)) {
    link.report_wait(*read.call, {read.owner}, now, patience.timeout);
  }
}

void Windows::end_reads(const std::string& cause) {
  for (const auto& [owner, wanted] : std::exchange(owners_, {})) {
    for (const auto& read : wanted.waiting) read->call->fail(cause);
  }
  for (const auto& [number, part] : std::exchange(parts_, {})) {
    part->read->call->fail(cause);
    // The read's data is under way. It must be received, or the owner's send would not end.
    if (part->data != nullptr) ranks_->world().keep({part->data, &part->data->exchange});
  }
}

std::shared_ptr<RemoteMemory> open_memory(std::shared_ptr<Windows> windows, const Call& made_by) {
  return std::make_shared<Memory>(std::move(windows), made_by);
}

}  // namespace tessera::internal::mpi
