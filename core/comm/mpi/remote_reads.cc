#include "tessera/core/comm/mpi/remote_reads.h"

#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/member.h"

namespace tessera::internal::mpi {

void RemoteReads::start(const std::shared_ptr<Call>& call, int owner, const ReadRequest& request) {
  const std::string cause = member_.failure();
  if (!cause.empty()) return call->fail(cause);
  World& world = member_.world();
  if (world.has_ended(member_.world_rank(owner))) return call->fail(left(owner));
  const int64_t number = ++last_;
  Envelope envelope = member_.envelope(Envelope::Kind::kRead);
  envelope.sequence = number;
  std::memcpy(envelope.payload(), &request, sizeof(request));
  world.send(envelope, member_.world_rank(owner));
  reads_[number] = std::make_shared<Read>(
      Read{member_.shared_from_this(), call, call->collective().output, owner, nullptr});
}

void RemoteReads::take(int owner, const Envelope& answer) {
  World& world = member_.world();
  const auto found = reads_.find(answer.sequence);
  if (found == reads_.end() || found->second->owner != owner) {
    if (answer.kind == Envelope::Kind::kAnswer) world.drain(member_.world_rank(owner), answer);
    return;
  }
  const std::shared_ptr<Read> read = found->second;
  if (answer.kind == Envelope::Kind::kRefused) {
    reads_.erase(found);
    return read->call->fail(left(owner));
  }
  const auto bytes = static_cast<int64_t>(read->to.nbytes());
  if (answer.signature.numel != bytes) {
    world.drain(member_.world_rank(owner), answer);
    return member_.fail(absl::StrCat(member_.name_of(owner), " answered a read of ", bytes,
                                     " bytes with ", answer.signature.numel),
                        owner);
  }
  if (bytes <= static_cast<int64_t>(Envelope::kPayloadBytes)) {
    std::memcpy(data_of(read->to), answer.payload(), static_cast<size_t>(bytes));
    reads_.erase(found);
    return read->call->finish();
  }
  read->exchange =
      std::make_unique<Exchange>(world.link(), member_.world_ranks(), Exchange::kNoTag);
  read->exchange->set_tag_of(owner, answer.data_tag);
  read->exchange->receive(owner, data_of(read->to), bytes);
}

bool RemoteReads::advance(Call::Clock::time_point now) {
  bool moved = false;
  for (auto place = reads_.begin(); place != reads_.end();) {
    Read& read = *place->second;
    if (read.exchange != nullptr && read.exchange->is_over()) {
      read.call->finish();
      place = reads_.erase(place);
      moved = true;
      continue;
    }
    if (read.call->is_late(now)) {
      const std::shared_ptr<Read> late = place->second;
      time_out(*late);  // nothing is left in the list
      return true;
    }
    ++place;
  }
  return moved;
}

std::string RemoteReads::left(int owner) const {
  return absl::StrCat(member_.name_of(owner), member_.place_of(owner),
                      " has left, and with it the memory that is read");
}

void RemoteReads::note_ended(int owner) {
  // What has been answered is on its way all the same.
  std::erase_if(reads_, [&](const auto& entry) {
    const Read& read = *entry.second;
    if (read.owner != owner || read.exchange != nullptr) return false;
    read.call->fail(left(owner));
    return true;
  });
}

void RemoteReads::time_out(const Read& read) {
  const std::string& tag = read.call->tag();
  member_.fail(
      absl::StrCat("timed out: ", member_.name_of(member_.rank()), " waited ",
                   read.call->timeout().count(), " ms for ", member_.name_of(read.owner),
                   member_.place_of(read.owner), " to ",
                   read.exchange == nullptr ? "answer a " : "send the data of a ",
                   read.call->name(), tag.empty() ? "" : " of '", tag, tag.empty() ? "" : "'"),
      read.owner);
}

void RemoteReads::end_all(const std::string& cause) {
  for (const auto& [number, read] : std::exchange(reads_, {})) {
    read->call->fail(cause);
    // Its data is under way: not taking it would keep the owner's send from ending.
    if (read->exchange != nullptr) member_.world().keep(*read->exchange, read);
  }
}

}  // namespace tessera::internal::mpi
