#include "tessera/core/comm/meeting/connection.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

using Clock = std::chrono::steady_clock;

absl::Status closed() { return absl::UnavailableError("ended or left"); }
absl::Status silent() { return absl::DeadlineExceededError("does not answer"); }
absl::Status senseless() {
  return absl::DataLossError(
      "sent a message that does not verify: it is not a rank of this job, has another "
      "TESSERA_JOB_TOKEN, or belongs to another attempt");
}

absl::Status rejected() {
  return absl::DataLossError(
      "does not accept this rank as one of its job: it is another program, has another "
      "TESSERA_JOB_TOKEN, or belongs to another attempt or job; give each job a place of its own");
}

}  // namespace

Connection::Connection(FileDescriptor socket) : socket_(std::move(socket)) {}

Connection::~Connection() {
  // Closes the connection for the other side, even if a child process has inherited the socket.
  ::shutdown(socket_.get(), SHUT_RDWR);
}

absl::StatusOr<std::unique_ptr<Connection>> Connection::enter(FileDescriptor socket,
                                                              const Credentials& credentials,
                                                              const Hello& own, Deadline deadline) {
  std::unique_ptr<Connection> connection(new Connection(std::move(socket)));
  const absl::Status status = connection->prove(credentials, own, deadline);
  if (!status.ok()) return status;
  return connection;
}

absl::Status Connection::prove(const Credentials& credentials, const Hello& own,
                               Deadline deadline) {
  const std::string nonce = MacKey::new_nonce();
  absl::Status sent =
      send(Message::of(MessageKind::kMemberNonce, {kMeetingProtocol, nonce}), deadline);
  if (!sent.ok()) return sent;
  const auto answer = receive(deadline);
  if (!answer.ok()) return answer.status();
  const auto other = parse_nonce(*answer, MessageKind::kServerNonce);
  if (!other) return senseless();
  framing_.authenticate_with(credentials.connection_key(nonce, *other));
  sent = send(Message::of(MessageKind::kMember, {own.to_text()}), deadline);
  if (!sent.ok()) return sent;
  const auto proof = receive(deadline);
  // A server that knows another token closes the connection.
  if (absl::IsUnavailable(proof.status())) return rejected();
  if (!proof.ok()) return proof.status();
  if (!proof->is(MessageKind::kServer, 1)) return senseless();
  const auto server = Hello::from_text(proof->fields[0]);
  if (!server) return senseless();
  server_ = *server;
  framing_.trust();
  return absl::OkStatus();
}

absl::Status Connection::await(short events, Deadline deadline) {
  while (true) {
    pollfd waiting{socket_.get(), events, 0};
    const int ready = ::poll(&waiting, 1, milliseconds_until(deadline));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) {
      return absl::UnavailableError(
          absl::StrCat("cannot be reached (poll: ", strerror(errno), ")"));
    }
    if (Clock::now() >= deadline) return silent();
  }
}

absl::Status Connection::send(const Message& message, Deadline deadline) {
  const std::string bytes = framing_.wrap(message.to_bytes());
  for (size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = ::send(socket_.get(), bytes.data() + sent, bytes.size() - sent,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EINTR) {
      const absl::Status ready = await(POLLOUT, deadline);
      if (!ready.ok()) return ready;
    } else {
      return closed();
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Message> Connection::receive(Deadline deadline) {
  while (true) {
    if (const auto payload = framing_.take()) {
      auto message = Message::from_bytes(*payload);
      if (!message) return senseless();
      return *std::move(message);
    }
    if (framing_.is_broken()) return senseless();
    const absl::Status ready = await(POLLIN, deadline);
    if (!ready.ok()) return ready;
    std::array<char, 65536> bytes;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count == 0) return closed();
    if (count < 0) {
      if (errno == EAGAIN || errno == EINTR) continue;
      return closed();
    }
    framing_.add({bytes.data(), static_cast<size_t>(count)});
  }
}

}  // namespace tessera::internal
