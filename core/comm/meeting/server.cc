#include "tessera/core/comm/meeting/server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/comm/meeting/deadline.h"
#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/comm/meeting/place.h"
#include "tessera/core/comm/meeting/protocol.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kServerLinger = std::chrono::seconds(1);
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(100);
constexpr auto kPauseInACrowd = std::chrono::milliseconds(10);
constexpr size_t kMaxQueuedBytes = 2 * Framing::kMax;  // of a member that asks and does not read

bool is_unix_socket(int socket) {
  int domain = 0;
  socklen_t length = sizeof(domain);
  return ::getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &domain, &length) == 0 && domain == AF_UNIX;
}

}  // namespace

struct Server::Session {
  enum class Stage : uint8_t { kNonce, kProof, kMember, kLost };

  /// Bytes on their way out, and a descriptor that goes with the first of them.
  struct Outgoing {
    std::string bytes;
    int descriptor;
  };

  Session(Member number, FileDescriptor arrived)
      : member(number), socket(std::move(arrived)), prove_by(Clock::now() + kTimeToProve) {}

  bool is_unproven() const { return stage == Stage::kNonce || stage == Stage::kProof; }

  const Member member;
  FileDescriptor socket;
  Framing framing{Framing::Side::kServer};
  Stage stage = Stage::kNonce;
  Clock::time_point prove_by;
  std::deque<Outgoing> outgoing;
  size_t queued_bytes = 0;
};

Server::Server(std::unique_ptr<Listener> listener, Credentials credentials, Hello self, Warn warn)
    : listener_(std::move(listener)),
      is_local_(is_unix_socket(listener_->fd())),
      credentials_(std::move(credentials)),
      self_(std::move(self)),
      warn_(std::move(warn)),
      wake_up_(above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  if (wake_up_.is_open()) return;
  throw MeetingFailure{
      absl::StrCat("[rendezvous] the place where ranks meet: got no eventfd, expected one; ",
                   system_refusal("eventfd2", errno)),
      /*is_place_wrong=*/true};
}

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

void Server::wake() const {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_up_.get(), &one, sizeof(one)));
}

std::vector<Server::Event> Server::serve(std::chrono::milliseconds patience) {
  const bool is_endless = patience.count() < 0;
  const Deadline until = is_endless ? Deadline::max() : Clock::now() + patience;
  do {
    sweep();
    if (!events_.empty()) break;
    const int own = next_wait_ms();
    const int left = is_endless ? -1 : milliseconds_until(until);
    if (poll_once(left < 0 || (own >= 0 && own < left) ? own : left)) break;
  } while (events_.empty() && Clock::now() < until);
  return std::exchange(events_, {});
}

/// Waits once. Returns whether somebody has called wake().
bool Server::poll_once(int patience_ms) {
  std::vector<pollfd> waiting{{wake_up_.get(), POLLIN, 0}};
  for (const Session& session : sessions_) {
    const short events = session.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
    waiting.push_back({session.socket.get(), events, 0});
  }
  const bool listens = listener_->fd() >= 0 && Clock::now() >= accepts_from_;
  if (listens) waiting.push_back({listener_->fd(), POLLIN, 0});
  if (::poll(waiting.data(), waiting.size(), patience_ms) <= 0) return false;
  size_t place = 1;
  for (Session& session : sessions_) {
    const short happened = waiting[place++].revents;
    if ((happened & POLLOUT) != 0) flush(session);
    if ((happened & (POLLIN | POLLHUP | POLLERR)) != 0) receive(session);
  }
  if (listens && waiting[place].revents != 0) accept_all();
  uint64_t count;
  return waiting[0].revents != 0 && ::read(wake_up_.get(), &count, sizeof(count)) > 0;
}

int Server::next_wait_ms() const {
  const bool is_awaited = std::any_of(sessions_.begin(), sessions_.end(),
                                      [](const Session& session) { return session.is_unproven(); });
  if (Clock::now() < accepts_from_) return 10;
  return is_awaited ? 100 : -1;
}

/// Whether another one may come in and try. Many ranks that start at once wait for a moment;
/// strangers that say nothing go.
bool Server::make_room() {
  const auto unproven = [](const Session& session) { return session.is_unproven(); };
  const auto count = std::count_if(sessions_.begin(), sessions_.end(), unproven);
  if (sessions_.size() >= kMaxMembers + kMaxUnproven) return false;
  if (static_cast<size_t>(count) < kMaxUnproven) return true;
  Session& oldest = *std::find_if(sessions_.begin(), sessions_.end(), unproven);
  if (Clock::now() < oldest.prove_by - kTimeToProve + kTimeToProveInACrowd) return false;
  reject(oldest);
  sweep();
  return true;
}

void Server::accept_all() {
  while (true) {
    if (!make_room()) {
      accepts_from_ = Clock::now() + kPauseInACrowd;
      return;
    }
    FileDescriptor arrived = listener_->accept();
    if (!arrived.is_open()) {
      if (errno == EMFILE || errno == ENFILE) {
        if (accepts_from_ == Clock::time_point()) {
          warn_(absl::StrCat("[rendezvous] ", self_.name(),
                             ", where the ranks meet, cannot let others in (", std::strerror(errno),
                             "); raise ulimit -n"));
        }
        accepts_from_ = Clock::now() + kPauseWithoutDescriptors;
      }
      return;  // not admitted, or no connection; poll reports further ones
    }
    sessions_.emplace_back(next_member_++, std::move(arrived));
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

/// Lets go of sessions that are over, and of those that have had their time to prove themselves.
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
  // Who leaves without a proof is no news: it may have looked whether somebody is here.
  if (count <= 0) return lose(session);
  try {
    session.framing.add({bytes.data(), static_cast<size_t>(count)});
    while (session.stage != Session::Stage::kLost) {
      const auto payload = session.framing.take();
      if (!payload) break;
      auto message = Message::from_bytes(*payload);
      if (!message) return drop(session);
      understand(session, *std::move(message));
    }
  } catch (const std::bad_alloc&) {  // no memory for what it sends: the others stay
    return lose(session);
  }
  if (session.framing.is_broken()) drop(session);
}

/// Of a connection that sends what nobody understands.
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
    send(session, nonce_message(MessageKind::kServerNonce, own), -1);
    session.framing.authenticate_with(credentials_.connection_key(*other, own));
    session.stage = Session::Stage::kProof;
    return;
  }
  if (!is_message(message, MessageKind::kMember, 1)) return reject(session);
  session.stage = Session::Stage::kMember;
  session.framing.trust();
  send(session, make_message(MessageKind::kServer, {self_.to_text()}), -1);
}

void Server::send(Member member, const Message& message, int descriptor) {
  for (Session& session : sessions_) {
    if (session.member == member && session.stage == Session::Stage::kMember) {
      return send(session, message, is_local_ ? descriptor : -1);
    }
  }
}

void Server::send_to_all(const Message& message) {
  for (Session& session : sessions_) {
    if (session.stage == Session::Stage::kMember) send(session, message, -1);
  }
}

void Server::send(Session& session, const Message& message, int descriptor) {
  session.outgoing.push_back({session.framing.wrap(message.to_bytes()), descriptor});
  session.queued_bytes += session.outgoing.back().bytes.size();
  if (session.queued_bytes > kMaxQueuedBytes) return lose(session);
  flush(session);
}

void Server::flush(Session& session) {
  while (session.stage != Session::Stage::kLost && !session.outgoing.empty()) {
    Session::Outgoing& first = session.outgoing.front();
    iovec piece{first.bytes.data(), first.bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    if (first.descriptor >= 0) {
      header.msg_control = control.data();
      header.msg_controllen = control.size();
      cmsghdr* const part = CMSG_FIRSTHDR(&header);
      part->cmsg_level = SOL_SOCKET;
      part->cmsg_type = SCM_RIGHTS;
      part->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(part), &first.descriptor, sizeof(int));
    }
    const ssize_t count = ::sendmsg(session.socket.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR) lose(session);
      return;
    }
    session.queued_bytes -= static_cast<size_t>(count);
    first.descriptor = -1;
    first.bytes.erase(0, static_cast<size_t>(count));
    if (first.bytes.empty()) session.outgoing.pop_front();
  }
}

}  // namespace tessera::internal
