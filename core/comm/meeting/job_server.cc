#include "tessera/core/comm/meeting/job_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/util/Exception.h>

#include "tessera/core/comm/meeting/framing.h"
#include "tessera/core/process/standard_streams.h"
#include "tessera/core/process/system_refusal.h"
#include "tessera/core/process/thread_without_signals.h"

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kServerLinger = std::chrono::seconds(1);
constexpr auto kPauseWithoutDescriptors = std::chrono::milliseconds(100);
constexpr auto kPauseInACrowd = std::chrono::milliseconds(10);
constexpr size_t kMaxQueuedBytes = 2 * Framing::kMax;  // of a member that asks and does not read

}  // namespace

struct JobServer::Session {
  enum class Stage : uint8_t { kNonce, kProof, kMember, kLost };

  /// Bytes on their way out, and a descriptor that goes with the first of them.
  struct Outgoing {
    std::string bytes;
    int descriptor;
  };

  explicit Session(FileDescriptor arrived)
      : socket(std::move(arrived)), prove_by(Clock::now() + kTimeToProve) {}

  bool is_unproven() const { return stage == Stage::kNonce || stage == Stage::kProof; }

  FileDescriptor socket;
  Framing framing{Framing::Side::kHost};
  Stage stage = Stage::kNonce;
  Clock::time_point prove_by;
  std::deque<Outgoing> outgoing;
  size_t queued_bytes = 0;
  std::vector<std::pair<std::string, std::string>> on_loss;
};

JobServer::JobServer(std::unique_ptr<Listener> listener, std::shared_ptr<JobTable> table,
                     Credentials credentials, HostProcess self)
    : listener_(std::move(listener)),
      table_(std::move(table)),
      credentials_(std::move(credentials)),
      self_(std::move(self)),
      wake_up_(above_standard_streams(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) {
  TORCH_CHECK(wake_up_.is_open(),
              "[comm] the place where ranks meet: got no eventfd, expected one; ",
              system_refusal("eventfd2", errno));
  thread_ = std::make_unique<std::thread>(
      thread_without_signals("the place where ranks meet", [this] { run(); }));
}

JobServer::~JobServer() {
  if (!origin_.is_here()) {
    static_cast<void>(thread_.release());  // there is no such thread to wait for
    listener_->abandon();
    return;
  }
  is_to_end_.store(true);
  wake();
  thread_->join();
}

void JobServer::wake() const {
  const uint64_t one = 1;
  static_cast<void>(!::write(wake_up_.get(), &one, sizeof(one)));
}

void JobServer::stop_listening() {
  if (!origin_.is_here()) return;
  is_to_stop_listening_.store(true);
  wake();
  has_stopped_listening_.wait(false);
}

/// The thread.
void JobServer::run() {
  std::optional<Clock::time_point> leave_by;
  std::vector<pollfd> waiting;
  while (true) {
    if (is_to_end_.load() && !leave_by) leave_by = Clock::now() + kServerLinger;
    if (leave_by || is_to_stop_listening_.load()) {
      close_listener();
      has_stopped_listening_.store(true);
      has_stopped_listening_.notify_all();
    }
    sweep();
    if (leave_by && (sessions_.empty() || Clock::now() >= *leave_by)) return;
    waiting.assign({{wake_up_.get(), POLLIN, 0}});
    for (const Session& session : sessions_) {
      const short events = session.outgoing.empty() ? POLLIN : POLLIN | POLLOUT;
      waiting.push_back({session.socket.get(), events, 0});
    }
    const bool listens = listener_->fd() >= 0 && Clock::now() >= accepts_from_;
    if (listens) waiting.push_back({listener_->fd(), POLLIN, 0});
    const int patience = leave_by ? 20 : next_wait_ms();
    if (::poll(waiting.data(), waiting.size(), patience) <= 0) continue;
    if (waiting[0].revents != 0) {
      uint64_t count;
      static_cast<void>(!::read(wake_up_.get(), &count, sizeof(count)));
    }
    size_t place = 1;
    for (Session& session : sessions_) {
      const short happened = waiting[place++].revents;
      if ((happened & POLLOUT) != 0) flush(session);
      if ((happened & (POLLIN | POLLHUP | POLLERR)) == 0) continue;
      try {
        receive(session);
      } catch (const std::exception&) {  // no memory for what it sends: the others stay
        lose(session);
      }
    }
    if (listens && waiting[place].revents != 0) accept_all();
  }
}

int JobServer::next_wait_ms() const {
  const bool is_awaited = std::any_of(sessions_.begin(), sessions_.end(),
                                      [](const Session& session) { return session.is_unproven(); });
  if (Clock::now() < accepts_from_) return 10;
  return is_awaited ? 100 : -1;
}

/// Whether another one may come in and try. Many ranks that start at once wait for a moment;
/// strangers that say nothing go.
bool JobServer::make_room() {
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

void JobServer::accept_all() {
  while (true) {
    if (!make_room()) {
      accepts_from_ = Clock::now() + kPauseInACrowd;
      return;
    }
    FileDescriptor arrived = listener_->accept();
    if (!arrived.is_open()) {
      if (errno == EMFILE || errno == ENFILE) {
        accepts_from_ = Clock::now() + kPauseWithoutDescriptors;
        TORCH_WARN_ONCE("[rendezvous] ", self_.text(),
                        ", where the ranks meet, cannot let others in (", std::strerror(errno),
                        "); raise ulimit -n");
      }
      return;  // not admitted, or no connection; poll reports further ones
    }
    sessions_.emplace_back(std::move(arrived));
  }
}

void JobServer::reject(Session& session) {
  session.stage = Session::Stage::kLost;
  if (rejected_.fetch_add(1, std::memory_order_relaxed) == 0) {
    TORCH_WARN("[rendezvous] somebody connected to ", self_.text(),
               ", where the ranks of this job meet, and did not prove to be one of them; it is "
               "ignored, and so are later ones. If a rank is missing, give all ranks the same "
               "TESSERA_JOB_TOKEN");
  }
}

void JobServer::lose(Session& session) {
  session.stage = Session::Stage::kLost;
  for (const auto& [key, value] : session.on_loss) table_->set_unless_there(key, value);
  session.on_loss.clear();
}

/// Stops listening and closes connections that have proved nothing.
void JobServer::close_listener() {
  listener_->close();
  for (Session& session : sessions_) {
    if (session.is_unproven()) session.stage = Session::Stage::kLost;
  }
}

/// Lets go of sessions that are over, and of those that have had their time to prove themselves.
void JobServer::sweep() {
  const auto now = Clock::now();
  for (Session& session : sessions_) {
    if (session.is_unproven() && now >= session.prove_by) reject(session);
  }
  std::erase_if(sessions_,
                [](const Session& session) { return session.stage == Session::Stage::kLost; });
}

void JobServer::receive(Session& session) {
  if (session.stage == Session::Stage::kLost) return;
  std::array<char, 65536> bytes;
  const ssize_t count = ::recv(session.socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) {
    lose(session);  // who leaves without a proof is no news: a rank that looks whether we are here
    return;
  }
  session.framing.add({bytes.data(), static_cast<size_t>(count)});
  while (session.stage != Session::Stage::kLost) {
    const auto payload = session.framing.take();
    if (!payload) break;
    const auto message = Message::from_bytes(*payload);
    if (!message) {
      reject(session);
    } else if (session.is_unproven()) {
      enter(session, *message);
    } else {
      answer(session, *message);
    }
  }
  if (!session.framing.is_broken()) return;
  if (session.is_unproven()) {
    reject(session);
  } else {
    lose(session);
  }
}

void JobServer::enter(Session& session, const Message& message) {
  if (session.stage == Session::Stage::kNonce) {
    const auto other = parse_nonce(message, ConnectionHandshake::kMemberNonce);
    if (!other) return reject(session);
    const std::string own = MacKey::new_nonce();
    send(session, nonce_message(ConnectionHandshake::kHostNonce, own));
    session.framing.authenticate_with(credentials_.connection_key(*other, own));
    session.stage = Session::Stage::kProof;
    return;
  }
  if (!is_member_message(message)) return reject(session);
  session.stage = Session::Stage::kMember;
  session.framing.trust();
  send(session, host_message(self_));
}

void JobServer::answer(Session& session, const Message& message) {
  const auto kind = static_cast<RequestKind>(message.kind);
  if (kind == RequestKind::kOnLoss && message.fields.size() == 2) {
    session.on_loss.emplace_back(message.fields[0], message.fields[1]);
    return send(session, {.kind = static_cast<uint8_t>(ReplyKind::kYes), .fields = {}});
  }
  if (kind == RequestKind::kBorrow && message.fields.size() == 1) {
    const auto descriptor = table_->lent(message.fields[0]);
    const ReplyKind reply = descriptor ? ReplyKind::kYes : ReplyKind::kNo;
    return send(session, {.kind = static_cast<uint8_t>(reply), .fields = {}},
                descriptor.value_or(-1));
  }
  send(session, table_->reply(message));
}

void JobServer::send(Session& session, const Message& message, int descriptor) {
  session.outgoing.push_back({session.framing.wrap(message.to_bytes()), descriptor});
  session.queued_bytes += session.outgoing.back().bytes.size();
  if (session.queued_bytes > kMaxQueuedBytes) return lose(session);
  flush(session);
}

void JobServer::flush(Session& session) {
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
