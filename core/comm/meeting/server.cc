#include "tessera/core/comm/meeting/server.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include <absl/algorithm/container.h>
#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/process/file_descriptor.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kServerLinger = std::chrono::seconds(1);
constexpr auto kPauseAtLimit = std::chrono::milliseconds(10);
// The longest wait inside serve() between two looks at connections that have not proved themselves.
constexpr auto kServerSlice = std::chrono::milliseconds(50);

}  // namespace

struct Server::Session {
  enum class Stage : uint8_t { kNonce, kProof, kMember, kLost };

  Session(Member number, FileDescriptor arrived)
      : member(number), socket(std::move(arrived)), prove_by(Clock::now() + kTimeToProve) {}

  bool is_unproven() const { return stage == Stage::kNonce || stage == Stage::kProof; }

  const Member member;
  FileDescriptor socket;
  Framing framing{Framing::Side::kServer};
  Stage stage = Stage::kNonce;
  Clock::time_point prove_by;
  std::string outgoing;  // bytes still to be sent
};

Server::Server(std::unique_ptr<Listener> listener, Credentials credentials, Hello self, Warn warn)
    : listener_(std::move(listener)),
      credentials_(std::move(credentials)),
      self_(std::move(self)),
      warn_(std::move(warn)) {}

Server::~Server() {
  finish([](const Event& /*event*/) {});
}

void Server::finish(const std::function<void(const Event&)>& answer) {
  stop_listening();
  const Deadline until = Clock::now() + kServerLinger;
  while (!sessions_.empty() && Clock::now() < until) {
    for (const Event& event : serve(std::chrono::milliseconds(20))) answer(event);
  }
  sessions_.clear();
}

std::vector<Server::Event> Server::serve(std::chrono::milliseconds patience) {
  sweep();
  if (events_.empty()) poll_once(std::min(patience, kServerSlice));
  return std::exchange(events_, {});
}

void Server::poll_once(std::chrono::milliseconds patience) {
  std::vector<pollfd> waiting;
  for (const Session& session : sessions_) {
    const short events = session.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
    waiting.push_back({session.socket.get(), events, 0});
  }
  const bool listens = listener_->fd() >= 0 && has_room();
  if (listens) waiting.push_back({listener_->fd(), POLLIN, 0});
  if (::poll(waiting.data(), waiting.size(), static_cast<int>(patience.count())) <= 0) return;
  size_t place = 0;
  for (Session& session : sessions_) {
    const short happened = waiting[place++].revents;
    if ((happened & POLLOUT) != 0) flush(session);
    if ((happened & (POLLIN | POLLHUP | POLLERR)) != 0) receive(session);
  }
  if (listens && waiting[place].revents != 0) accept_all();
}

/// Returns true if there is room for another connection that has not proved itself.
bool Server::has_room() const {
  const auto count = absl::c_count_if(sessions_, std::mem_fn(&Session::is_unproven));
  return static_cast<size_t>(count) < kMaxUnproven && sessions_.size() < kMaxMembers + kMaxUnproven;
}

void Server::accept_all() {
  while (has_room()) {
    FileDescriptor arrived = listener_->accept();
    if (arrived.is_open()) {
      sessions_.emplace_back(next_member_++, std::move(arrived));
      continue;
    }
    // Unless the limit of open files is the reason, returning is enough: poll() reports the next
    // connection.
    if (errno != EMFILE && errno != ENFILE) return;
    if (!std::exchange(has_warned_of_limit_, true)) {
      warn_(absl::StrCat("[rendezvous] ", self_.name(),
                         ", where the ranks meet, cannot let others in (", std::strerror(errno),
                         "); raise ulimit -n"));
    }
    std::this_thread::sleep_for(kPauseAtLimit);
    return;
  }
}

void Server::reject(Session& session) {
  session.stage = Session::Stage::kLost;
  if (rejected_++ != 0) return;
  warn_(absl::StrCat("[rendezvous] somebody connected to ", self_.name(),
                     ", where the ranks of this job meet, and did not prove to be one of them; it "
                     "is ignored, and so are later ones. If a rank is missing, give all ranks the "
                     "same TESSERA_JOB_TOKEN"));
}

void Server::lose(Session& session) {
  if (session.stage == Session::Stage::kMember) events_.push_back({session.member, std::nullopt});
  session.stage = Session::Stage::kLost;
}

void Server::stop_listening() {
  listener_->close();
  for (Session& session : sessions_) {
    if (session.is_unproven()) session.stage = Session::Stage::kLost;
  }
}

/// Drops connections that have ended, and rejects those that have not proved themselves in time.
void Server::sweep() {
  const auto now = Clock::now();
  for (Session& session : sessions_) {
    if (session.is_unproven() && now >= session.prove_by) reject(session);
  }
  std::erase_if(sessions_,
                [](const Session& session) { return session.stage == Session::Stage::kLost; });
}

void Server::receive(Session& session) {
  if (session.stage == Session::Stage::kLost) return;
  std::array<char, 65536> bytes;
  const ssize_t count = ::recv(session.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  // A process that leaves without a proof is not counted as rejected, because it may only have
  // looked whether a server is here.
  if (count <= 0) return lose(session);
  session.framing.add({bytes.data(), static_cast<size_t>(count)});
  while (session.stage != Session::Stage::kLost) {
    const auto payload = session.framing.take();
    if (!payload) break;
    auto message = Message::from_bytes(*payload);
    if (!message) return drop(session);
    understand(session, *std::move(message));
  }
  if (session.framing.is_broken()) drop(session);
}

/// Ends a connection that has sent something other than a message.
void Server::drop(Session& session) { session.is_unproven() ? reject(session) : lose(session); }

void Server::understand(Session& session, Message message) {
  if (session.is_unproven()) prove(session, message);
  if (session.stage != Session::Stage::kMember) return;
  events_.push_back({session.member, std::move(message)});
}

void Server::prove(Session& session, const Message& message) {
  if (session.stage == Session::Stage::kNonce) {
    const auto other = parse_nonce(message, MessageKind::kMemberNonce);
    if (!other) return reject(session);
    const std::string own = MacKey::new_nonce();
    send(session, Message::of(MessageKind::kServerNonce, {kMeetingProtocol, own}));
    session.framing.authenticate_with(credentials_.connection_key(*other, own));
    session.stage = Session::Stage::kProof;
    return;
  }
  if (!message.is(MessageKind::kMember, 1)) return reject(session);
  session.stage = Session::Stage::kMember;
  session.framing.trust();
  send(session, Message::of(MessageKind::kServer, {self_.to_text()}));
}

void Server::send(Member member, const Message& message) {
  for (Session& session : sessions_) {
    if (session.member == member && session.stage == Session::Stage::kMember) {
      return send(session, message);
    }
  }
}

void Server::send_to_all(const Message& message) {
  for (Session& session : sessions_) {
    if (session.stage == Session::Stage::kMember) send(session, message);
  }
}

void Server::send(Session& session, const Message& message) {
  session.outgoing += session.framing.wrap(message.to_bytes());
  flush(session);
}

void Server::flush(Session& session) {
  while (session.stage != Session::Stage::kLost && !session.outgoing.empty()) {
    const ssize_t count = ::send(session.socket.get(), session.outgoing.data(),
                                 session.outgoing.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR) lose(session);
      return;
    }
    session.outgoing.erase(0, static_cast<size_t>(count));
  }
}

}  // namespace tessera::internal
