// The reader's side of the windows of one group.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/windows.h"

namespace tessera::internal::mpi {
namespace {

// Together what a link of 10 Gbit/s carries in half a millisecond.
constexpr int64_t kPartBytes = 4 * Exchange::kUnaskedBytes;
constexpr int kPartsUnderWay = 3;
constexpr auto kLong = std::chrono::seconds(1);

}  // namespace

char* Windows::Part::target() const { return data_of(read->to) + begin_bytes; }

void Windows::read(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request) {
  if (ranks_->has_failed()) return call->fail(ranks_->failure().cause);
  owners_[owner].waiting.push_back(
      std::make_shared<Read>(Read{call, call->collective().output, owner, request}));
  // Words, on which others wait, do not stand behind what is large.
  if (request.bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    return ask_for_part(owners_[owner].waiting.back());
  }
  ask(owner);
}

/// For as much as may be under way.
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
  parts_[number] = std::make_shared<Part>(Part{std::move(read), begin, bytes, ranks_, nullptr});
}

void Windows::take(int owner, const Envelope& answer) {
  World& world = ranks_->world();
  const auto found = parts_.find(answer.number);
  if (found == parts_.end() || found->second->read->owner != owner) {
    return world.drain(ranks_->world_rank(owner), answer);
  }
  const std::shared_ptr<Part> part = found->second;
  if (part->bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    std::memcpy(part->target(), answer.payload(), static_cast<size_t>(part->bytes));
    parts_.erase(found);
    return finish(*part);
  }
  part->exchange =
      std::make_unique<Exchange>(world.communicator(), ranks_->world_ranks(), Exchange::kNoTag);
  part->exchange->set_tag_of(owner, answer.data_tag);
  part->exchange->receive_in_pieces(owner, part->target(), part->bytes);
}

/// Its data is there.
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
    const auto& exchange = entry.second->exchange;
    if (exchange == nullptr || !exchange->is_over()) return false;
    over.push_back(entry.second);
    return true;
  });
  for (const auto& part : over) finish(*part);
  for (const auto& [number, part] : parts_) {
    look_for_late(*part->read, part->exchange != nullptr, link, now);
  }
  for (const auto& [owner, wanted] : owners_) {
    for (const auto& read : wanted.waiting) look_for_late(*read, false, link, now);
  }
}

void Windows::look_for_late(const Read& read, bool is_answered, const internal::Link& link,
                            Call::Clock::time_point now) const {
  const Member::Patience patience = ranks_->world().patience();
  const auto waited = read.call->waited(now);
  // Who waits for this rank then sees what keeps it.
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
    // Its data is under way: not taking it would keep the owner's send from ending.
    if (part->exchange != nullptr) ranks_->world().keep(*part->exchange, part);
  }
}

}  // namespace tessera::internal::mpi
