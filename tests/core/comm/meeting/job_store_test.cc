// The host and its members over real sockets, and strangers that come to them.
#include "tessera/core/comm/meeting/job_store.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/core/comm/meeting/mac_key.h"
#include "tessera/core/comm/meeting/tcp_address.h"
#include "tessera/core/process/error_text.h"
#include "tessera/tests/support/message_of.h"

namespace tessera::internal {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

Credentials with_token(const std::string& token) {
  return {.token = token, .run_id = "run", .attempt = "0"};
}

/// A host at a free port of the loopback device.
class JobStoreTest : public ::testing::Test {
 protected:
  JobStoreTest() {
    const TcpAddress any = TcpAddress::resolve("127.0.0.1", 0, in(seconds(20))).value();
    auto listener = any.listen().value();
    port_ = endpoint_of(*listener).port;
    host_ = c10::make_intrusive<JobStore>(std::move(listener), with_token("secret"),
                                          HostProcess::of_this_process(0));
  }

  FileDescriptor connect() const {
    const TcpAddress address = TcpAddress::resolve("127.0.0.1", port_, in(seconds(20))).value();
    return address.connect(in(seconds(20))).value();
  }

  absl::StatusOr<std::unique_ptr<Connection>> enter(const Credentials& credentials) const {
    return Connection::enter(connect(), credentials, in(seconds(20)));
  }

  c10::intrusive_ptr<JobStore> member() const {
    return c10::make_intrusive<JobStore>(enter(with_token("secret")).value());
  }

  int port_ = 0;
  c10::intrusive_ptr<JobStore> host_;
};

TEST_F(JobStoreTest, MembersAndTheHostSeeOneTable) {
  const auto first = member();
  const auto second = member();
  EXPECT_TRUE(host_->is_host());
  EXPECT_FALSE(first->is_host());
  EXPECT_EQ(first->host().pid, ::getpid());
  c10d::Store& words = *first;
  words.set("key", std::string("a\0b", 3));
  EXPECT_EQ(static_cast<c10d::Store&>(*second).get_to_str("key"), std::string("a\0b", 3));
  EXPECT_EQ(static_cast<c10d::Store&>(*host_).get_to_str("key"), std::string("a\0b", 3));
  EXPECT_EQ(host_->add("n", 2), 2);
  EXPECT_EQ(second->add("n", 3), 5);
  EXPECT_TRUE(second->check({"key", "n"}));
  EXPECT_FALSE(second->check({"key", "none"}));
  EXPECT_TRUE(first->deleteKey("n"));
  EXPECT_EQ(words.compareSet("once", "", "mine"), "mine");
  EXPECT_EQ(static_cast<c10d::Store&>(*second).compareSet("once", "", "mine too"), "mine");
  EXPECT_EQ(second->getNumKeys(), 2);
}

TEST_F(JobStoreTest, LargeTextsAndManyThreads) {
  const auto store = member();
  const std::vector<uint8_t> large(8 << 20, 7);
  store->set("large", large);
  EXPECT_EQ(member()->get("large"), large);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 100; ++k) store->add("sum", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(host_->add("sum", 0), 800);
}

TEST_F(JobStoreTest, Case32AnotherTokenRunOrAttemptIsAStranger) {
  Credentials run = with_token("secret");
  run.run_id = "another";
  Credentials attempt = with_token("secret");
  attempt.attempt = "1";
  for (const Credentials& credentials : {with_token("guess"), with_token(""), run, attempt}) {
    EXPECT_FALSE(enter(credentials).ok());
  }
  EXPECT_TRUE(enter(with_token("secret")).ok());
}

TEST_F(JobStoreTest, WhatIsLostSaysSo) {
  auto store = member();
  store->set_when_gone("mark", "gone");
  store->set_when_gone("there", "too late");
  static_cast<c10d::Store&>(*store).set("there", "already");
  EXPECT_FALSE(host_->check({"mark"}));
  store.reset();
  host_->wait({"mark"}, seconds(20));
  EXPECT_EQ(static_cast<c10d::Store&>(*host_).get_to_str("there"), "already");
}

TEST_F(JobStoreTest, TheEndOfTheHostIsAnErrorThatNamesIt) {
  const auto store = member();
  std::thread ends([&] { host_.reset(); });
  EXPECT_THAT(
      testing::message_of([&] {
        store->setTimeout(seconds(20));
        for (;;) store->check({"key"});
      }),
      HasSubstr(absl::StrCat("rank 0 (pid ", ::getpid(), "), where the ranks meet, ended")));
  ends.join();
  EXPECT_THAT(testing::message_of([&] { store->check({"key"}); }), HasSubstr("ended or left"));
}

TEST_F(JobStoreTest, StopsListeningAndKeepsItsMembers) {
  const auto store = member();
  host_->stop_listening();
  EXPECT_TRUE(absl::IsNotFound(
      TcpAddress::resolve("127.0.0.1", port_, in(seconds(20)))->connect(in(seconds(20))).status()));
  static_cast<c10d::Store&>(*store).set("key", "still");
  EXPECT_TRUE(host_->check({"key"}));
  const auto next = TcpAddress::resolve("127.0.0.1", port_, in(seconds(20)))->listen();
  EXPECT_TRUE(next.ok()) << next.status();  // the place is free
}

/// What a stranger sends, and how long its connection then lasts.
void send_all(const FileDescriptor& socket, const std::string& bytes) {
  static_cast<void>(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
}

TEST_F(JobStoreTest, Case32StrangersEndNothing) {
  std::vector<FileDescriptor> strangers;
  const auto stranger_says = [&](const std::string& bytes) {
    strangers.push_back(connect());
    send_all(strangers.back(), bytes);
  };
  stranger_says("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
  stranger_says(std::string(100000, '\xff'));
  stranger_says(std::string(4, '\0'));
  stranger_says("\x05");
  const Message nonce = nonce_message(ConnectionHandshake::kMemberNonce, "0123456789abcdef");
  stranger_says(Framing(Framing::Side::kMember).wrap(nonce.to_bytes()));
  Framing guess(Framing::Side::kMember);
  const std::string first = guess.wrap(nonce.to_bytes());
  guess.authenticate_with(MacKey::of_token("guess"));
  stranger_says(first + guess.wrap(member_message().to_bytes()));
  stranger_says(
      Framing(Framing::Side::kMember)
          .wrap(Message{.kind = static_cast<uint8_t>(RequestKind::kSet), .fields = {"a", "b"}}
                    .to_bytes()));
  for (size_t i = 0; i < 2 * JobServer::kMaxUnproven; ++i) strangers.push_back(connect());
  const auto store = member();  // comes in all the same
  static_cast<c10d::Store&>(*store).set("key", "value");
  EXPECT_TRUE(host_->check({"key"}));
  EXPECT_FALSE(host_->check({"a"}));
  EXPECT_EQ(host_->getNumKeys(), 1);
}

TEST_F(JobStoreTest, ANonceIsNoProofThatMakesLongFramesWelcome) {
  const FileDescriptor stranger = connect();
  Framing guess(Framing::Side::kMember);
  send_all(
      stranger,
      guess.wrap(nonce_message(ConnectionHandshake::kMemberNonce, "0123456789abcdef").to_bytes()) +
          std::string("\x00\x00\x00\x04", 4));  // 64 MiB to come
  // Cut off: after the host's nonce comes the end.
  std::array<char, 4096> bytes;
  pollfd waiting{stranger.get(), POLLIN, 0};
  ssize_t count = 1;
  while (count > 0 && ::poll(&waiting, 1, 20000) > 0) {
    count = ::recv(stranger.get(), bytes.data(), bytes.size(), 0);
  }
  EXPECT_LE(count, 0);
  EXPECT_TRUE(member()->check({}));
}

TEST_F(JobStoreTest, Case32StopsListeningWithoutWaitingForStrangers) {
  const FileDescriptor silent = connect();
  const auto store = member();  // by now the stranger is in, too
  host_->stop_listening();
  std::array<char, 16> bytes;
  pollfd waiting{silent.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&waiting, 1, 20000), 1);
  EXPECT_LE(::recv(silent.get(), bytes.data(), bytes.size(), 0), 0);
  EXPECT_TRUE(store->check({}));
}

TEST_F(JobStoreTest, AHostThatKnowsNoTokenIsNotBelieved) {
  // Whoever listens where rank 0 should answers with what it likes.
  const TcpAddress any = TcpAddress::resolve("127.0.0.1", 0, in(seconds(20))).value();
  auto listener = any.listen().value();
  const int port = endpoint_of(*listener).port;
  const auto forger = c10::make_intrusive<JobStore>(std::move(listener), with_token("guess"),
                                                    HostProcess::of_this_process(0));
  auto socket = TcpAddress::resolve("127.0.0.1", port, in(seconds(20)))->connect(in(seconds(20)));
  const auto entered = Connection::enter(*std::move(socket), with_token("secret"), in(seconds(20)));
  EXPECT_FALSE(entered.ok());
}

TEST(JobStoreOnOneHost, DescriptorsArePassedOn) {
  const std::string name = absl::StrCat("tessera-test/", MacKey::new_nonce());
  const auto host = c10::make_intrusive<JobStore>(listen_at_name(name).value(), Credentials{},
                                                  HostProcess::of_this_process(0));
  const auto member = c10::make_intrusive<JobStore>(
      Connection::enter(connect_to_name(name).value(), {}, in(seconds(20))).value());
  EXPECT_FALSE(member->borrow("page").is_open());
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  host->lend("page", ends[0]);
  const FileDescriptor borrowed = member->borrow("page");
  ASSERT_TRUE(borrowed.is_open());
  struct stat lent {
  }, got{};
  ASSERT_EQ(::fstat(ends[0], &lent), 0);
  ASSERT_EQ(::fstat(borrowed.get(), &got), 0);
  EXPECT_EQ(lent.st_ino, got.st_ino);
  EXPECT_NE(borrowed.get(), ends[0]);
  EXPECT_TRUE(member->check({}));  // the stream goes on
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(JobStoreTest, NothingIsLentOverANetwork) {
  host_->lend("page", 0);
  EXPECT_FALSE(member()->borrow("page").is_open());
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A sanitizer's allocator may be locked, for good, in a child of a process with threads.
TEST_F(JobStoreTest, AChildOfTheHostLeavesItAlone) {
  const auto store = member();
  const pid_t child = ::fork();
  if (child == 0) {
    host_.reset();  // nothing is told or taken away
    ::_exit(0);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(store->check({}));
  EXPECT_TRUE(member()->check({}));
}
#endif

}  // namespace
}  // namespace tessera::internal
