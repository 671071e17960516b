// A table over real sockets, and strangers that connect to its server.
#include "tessera/core/comm/meeting/served_table.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/message.h"
#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/comm/meeting/unix_place.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

Credentials with_token(const std::string& token) {
  return {.token = token, .run_id = "run", .attempt = "0"};
}

Hello hello_of(int rank) { return Hello::of_this_process(rank, 2, "cpu", "test"); }

void no_warning(const std::string& /*text*/) {}

/// A table served on a free port of the loopback device.
class ServedTableTest : public ::testing::Test {
 protected:
  ServedTableTest() {
    const TcpAddress any = TcpAddress::resolve({"127.0.0.1"}, 0).value();
    auto listener = any.listen().value();
    port_ = endpoint_of(*listener).port;
    served_ = std::make_unique<ServedTable>(std::make_unique<Server>(
        std::move(listener), with_token("secret"), hello_of(0), no_warning));
  }

  FileDescriptor connect() const {
    const TcpAddress address = TcpAddress::resolve({"127.0.0.1"}, port_).value();
    return address.connect(in(seconds(20))).value();
  }

  absl::StatusOr<std::unique_ptr<Connection>> enter(const Credentials& credentials) const {
    return Connection::enter(connect(), credentials, hello_of(1), in(seconds(20)));
  }

  std::unique_ptr<RemoteTable> member() const {
    return std::make_unique<RemoteTable>(enter(with_token("secret")).value(), seconds(20));
  }

  int port_ = 0;
  std::unique_ptr<ServedTable> served_;
};

TEST_F(ServedTableTest, AllRanksSeeOneTable) {
  const auto first = member();
  const auto second = member();
  first->set("key", std::string("a\0b", 3));
  EXPECT_EQ(second->get("key"), std::string("a\0b", 3));
  EXPECT_EQ(served_->get("key"), std::string("a\0b", 3));
  EXPECT_EQ(second->get("none"), std::nullopt);
  served_->set("n", "2");
  EXPECT_TRUE(second->has({"key", "n"}));
  EXPECT_FALSE(second->has({"key", "none"}));
  first->erase("n");
  EXPECT_FALSE(served_->has({"n"}));
  EXPECT_EQ(first->set_first("once", "mine"), "mine");
  EXPECT_EQ(second->set_first("once", "mine too"), "mine");
  EXPECT_EQ(served_->set_first("once", "mine too"), "mine");
}

TEST_F(ServedTableTest, LargeTextsAndManyThreads) {
  const auto table = member();
  const std::string large(8 << 20, 'x');
  table->set("large", large);
  EXPECT_EQ(member()->get("large"), large);
  EXPECT_THAT(testing::message_of([&] { table->set("huge", std::string(40 << 20, 'x')); }),
              HasSubstr("expected less than"));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int k = 0; k < 100; ++k) table->set(absl::StrCat(i, "/", k), absl::StrCat(k));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(served_->get("7/99"), "99");
}

TEST_F(ServedTableTest, Case32AnotherTokenRunOrAttemptIsAStranger) {
  Credentials run = with_token("secret");
  run.run_id = "another";
  Credentials attempt = with_token("secret");
  attempt.attempt = "1";
  for (const Credentials& credentials : {with_token("guess"), with_token(""), run, attempt}) {
    EXPECT_FALSE(enter(credentials).ok());
  }
  EXPECT_TRUE(enter(with_token("secret")).ok());
}

TEST_F(ServedTableTest, TheEndOfRank0IsAnErrorThatNamesIt) {
  const auto table = member();
  std::thread ends([&] { served_.reset(); });
  EXPECT_THAT(testing::message_of([&] {
                for (;;) table->has({"key"});
              }),
              AllOf(HasSubstr(absl::StrCat("rank 0 (pid ", ::getpid(), ")")),
                    HasSubstr(", where the ranks meet, ended")));
  ends.join();
  EXPECT_THAT(testing::message_of([&] { table->has({"key"}); }), HasSubstr("ended or left"));
}

/// Sends bytes as a stranger does.
void send_all(const FileDescriptor& socket, const std::string& bytes) {
  static_cast<void>(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

TEST_F(ServedTableTest, Case32StrangersEndNothing) {
  std::vector<FileDescriptor> strangers;
  const auto stranger_says = [&](const std::string& bytes) {
    strangers.push_back(connect());
    send_all(strangers.back(), bytes);
  };
  stranger_says("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  stranger_says(std::string(100000, '\xff'));
  stranger_says(std::string(4, '\0'));
  stranger_says("\x05");
  const Message nonce =
      Message::of(MessageKind::kMemberNonce, {kMeetingProtocol, "0123456789abcdef"});
  stranger_says(Framing(Framing::Side::kMember).wrap(nonce.to_bytes()));
  Framing guess(Framing::Side::kMember);
  const std::string first = guess.wrap(nonce.to_bytes());
  guess.authenticate_with(MacKey::of_token("guess"));
  stranger_says(first +
                guess.wrap(Message::of(MessageKind::kMember, {hello_of(1).to_text()}).to_bytes()));
  stranger_says(
      Framing(Framing::Side::kMember)
          .wrap(Message{.kind = static_cast<uint8_t>(RequestKind::kSet), .fields = {"a", "b"}}
                    .to_bytes()));
  for (size_t i = 0; i < Server::kMaxUnproven; ++i) strangers.push_back(connect());
  const auto table = member();  // is let in when the strangers' time is over
  table->set("key", "value");
  EXPECT_TRUE(served_->has({"key"}));
  EXPECT_FALSE(served_->has({"a"}));
}

TEST_F(ServedTableTest, ANonceIsNoProofThatMakesLongFramesWelcome) {
  const FileDescriptor stranger = connect();
  Framing guess(Framing::Side::kMember);
  send_all(stranger,
           guess.wrap(Message::of(MessageKind::kMemberNonce, {kMeetingProtocol, "0123456789abcdef"})
                          .to_bytes()) +
               std::string("\x00\x00\x00\x04", 4));  // 64 MiB to come
  // The server closes the connection after its nonce.
  std::array<char, 4096> bytes;
  pollfd waiting{stranger.get(), POLLIN, 0};
  ssize_t count = 1;
  while (count > 0 && ::poll(&waiting, 1, 20000) > 0) {
    count = ::recv(stranger.get(), bytes.data(), bytes.size(), 0);
  }
  EXPECT_LE(count, 0);
  EXPECT_TRUE(member()->has({}));
}

TEST_F(ServedTableTest, AServerThatKnowsNoTokenIsNotBelieved) {
  // A process that listens in rank 0's place can answer anything.
  const TcpAddress any = TcpAddress::resolve({"127.0.0.1"}, 0).value();
  auto listener = any.listen().value();
  const int port = endpoint_of(*listener).port;
  const ServedTable forger(
      std::make_unique<Server>(std::move(listener), with_token("guess"), hello_of(0), no_warning));
  auto socket = TcpAddress::resolve({"127.0.0.1"}, port)->connect(in(seconds(20)));
  EXPECT_FALSE(
      Connection::enter(*std::move(socket), with_token("secret"), hello_of(1), in(seconds(20)))
          .ok());
}

/// A server without a thread.
class ServerTest : public ::testing::Test {
 protected:
  std::unique_ptr<Server> at_name() const {
    return std::make_unique<Server>(listen().value(), Credentials{}, hello_of(0), no_warning);
  }
  absl::StatusOr<std::unique_ptr<Listener>> listen() const { return UnixPlace(name_).listen({}); }
  absl::StatusOr<FileDescriptor> connect() const { return UnixPlace(name_).connect({}); }
  std::unique_ptr<Connection> enter() const {
    return Connection::enter(connect().value(), {}, hello_of(1), in(seconds(20))).value();
  }
  /// Serves until a member has sent something or left.
  static Server::Event next(Server& server) {
    std::vector<Server::Event> events;
    while (events.empty()) events = server.serve(seconds(20));
    return events.front();
  }

  const std::string name_ = absl::StrCat("tessera-test/", MacKey::new_nonce());
};

TEST_F(ServerTest, Case32StopsListeningAndKeepsItsMembers) {
  const auto server = at_name();
  const FileDescriptor silent = connect().value();
  std::thread member([this] {
    const auto connection = enter();
    const auto received = connection->receive(in(seconds(20)));
    EXPECT_TRUE(received.ok()) << received.status();
  });
  next(*server);  // by now the stranger is in, too
  server->stop_listening();
  EXPECT_FALSE(connect().ok());
  EXPECT_TRUE(listen().ok()) << "the place is free";
  server->send_to_all(Message::of(MessageKind::kGo));
  next(*server);
  member.join();
  std::array<char, 16> bytes;
  pollfd waiting{silent.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 20000), 1);
  EXPECT_LE(::recv(silent.get(), bytes.data(), bytes.size(), 0), 0);
}

TEST_F(ServerTest, AMemberThatSendsNoMessageHasGoneAndIsNoStranger) {
  const auto server = at_name();
  std::thread member([this] {
    const auto connection = enter();
    const Message too_long{.kind = 1, .fields = std::vector<std::string>(Message::kMaxFields + 1)};
    EXPECT_TRUE(connection->send(too_long, in(seconds(20))).ok());
    EXPECT_TRUE(absl::IsUnavailable(connection->receive(in(seconds(20))).status()));
  });
  next(*server);
  EXPECT_FALSE(next(*server).message);
  while (!server->serve(std::chrono::milliseconds(1)).empty()) continue;  // closes it
  member.join();
  EXPECT_EQ(server->rejected(), 0);
}

TEST_F(ServerTest, StrangersAreCounted) {
  const auto server = at_name();
  const FileDescriptor stranger = connect().value();
  send_all(stranger, std::string(4, '\xff'));
  while (server->rejected() == 0) server->serve(std::chrono::milliseconds(10));
  EXPECT_EQ(server->rejected(), 1);
}

}  // namespace
}  // namespace tessera::internal
