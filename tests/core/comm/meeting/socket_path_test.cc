#include "tessera/core/comm/meeting/socket_path.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/meeting/abstract_socket.h"
#include "tessera/tests/support/refused_calls.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;

class SocketPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/tessera-socket-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    directory_ = directory;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  SocketPath at(const std::string& name) const {
    return SocketPath::open(absl::StrCat(directory_, "/", name)).value();
  }
  /// What a process that was killed leaves behind.
  void leave_socket(const std::string& name) const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = absl::StrCat(directory_, "/", name);
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(::listen(socket.get(), 1), 0);
  }
  size_t entries() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(directory_),
                                             std::filesystem::directory_iterator()));
  }

  std::string directory_;
};

TEST_F(SocketPathTest, DeadSocketsOfYesterdayAreRemoved) {
  const auto age = [&](const std::string& name) {
    const timespec two_days_ago{.tv_sec = ::time(nullptr) - 2 * 24 * 60 * 60, .tv_nsec = 0};
    const timespec times[] = {two_days_ago, two_days_ago};
    const std::string path = absl::StrCat(directory_, "/", name);
    ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW), 0);
  };
  for (const char* name : {"dead", "young"}) leave_socket(name);
  const auto listener = at("alive").listen().value();
  std::ofstream(directory_ + "/file") << "a user's";
  std::filesystem::create_symlink(directory_ + "/young", directory_ + "/link");
  for (const char* name : {"dead", "alive", "file", "link"}) age(name);
  {
    const FileDescriptor holder(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_EQ(::flock(holder.get(), LOCK_EX | LOCK_NB), 0);
    remove_dead_sockets(directory_);
    EXPECT_EQ(entries(), 5U);
  }
  remove_dead_sockets(directory_);
  EXPECT_EQ(entries(), 4U);
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/dead"));
  EXPECT_TRUE(at("alive").connect().ok());
  const FileDescriptor one = listener->accept();  // that one: the question is no connection
  EXPECT_TRUE(one.is_open());
  EXPECT_FALSE(listener->accept().is_open());
  remove_dead_sockets(directory_ + "/none");
}

TEST_F(SocketPathTest, TheFirstListensAndTheOthersConnect) {
  const SocketPath path = at("store");
  EXPECT_TRUE(absl::IsNotFound(path.connect().status()));
  auto listener = path.listen();
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_NE(*listener, nullptr);
  EXPECT_EQ(*path.listen(), nullptr);  // somebody does
  const auto socket = path.connect();
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_EQ(peer_pid(socket->get()), ::getpid());
  EXPECT_TRUE((*listener)->accept().is_open());
  listener->reset();
  EXPECT_EQ(entries(), 0u);
  EXPECT_TRUE(absl::IsNotFound(path.connect().status()));
}

TEST_F(SocketPathTest, TheFirstListensAlsoWithoutLocks) {
  if (!testing::can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  for (const int error : {ENOLCK, ENOSYS, EOPNOTSUPP}) {
    testing::run_with_refused_calls({{SYS_flock, error}}, [&] {
      leave_socket("store");
      const auto listener = at("store").listen();
      ASSERT_TRUE(listener.ok()) << listener.status();
      ASSERT_NE(*listener, nullptr);
      EXPECT_EQ(*at("store").listen(), nullptr);
    });
  }
}

TEST_F(SocketPathTest, TheSocketGoesAlsoWhereNoDescriptorIsLeft) {
  auto listener = *at("store").listen();
  ASSERT_EQ(entries(), 1u);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_FALSE(new_local_socket().is_open());
  listener.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(SocketPathTest, OfManyAtOnceOneListens) {
  constexpr int kThreads = 16;
  std::vector<std::unique_ptr<Listener>> listeners(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const SocketPath path = at("store");
      while (!path.connect().ok()) {
        auto listener = path.listen();
        if (listener.ok() && *listener != nullptr) listeners[i] = *std::move(listener);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  int count = 0;
  for (const auto& listener : listeners) count += listener != nullptr ? 1 : 0;
  EXPECT_EQ(count, 1);
}

TEST_F(SocketPathTest, PathsAndNamesMayBeLong) {
  std::string deep = directory_;
  for (int i = 0; i < 20; ++i) deep += "/a-directory-with-quite-a-long-name";
  std::filesystem::create_directories(deep);
  for (const size_t length : {1, 80, 81, 255}) {
    const SocketPath path = SocketPath::open(deep + "/" + std::string(length, 'n')).value();
    const auto listener = path.listen();
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(path.connect().ok()) << length;
    const SocketPath other = SocketPath::open(deep + "/" + std::string(length, 'm')).value();
    EXPECT_TRUE(absl::IsNotFound(other.connect().status())) << length;
  }
}

TEST_F(SocketPathTest, ADeadProcesssSocketIsReplacedAndOnlyThat) {
  leave_socket("store");
  ASSERT_EQ(entries(), 1u);
  const SocketPath path = at("store");
  auto listener = path.listen();
  ASSERT_TRUE(listener.ok() && *listener != nullptr);
  // One that was replaced does not take its successor with it.
  std::filesystem::remove(directory_ + "/store");
  auto successor = path.listen();
  ASSERT_TRUE(successor.ok() && *successor != nullptr);
  listener->reset();
  EXPECT_TRUE(path.connect().ok());
}

TEST_F(SocketPathTest, WhatIsNoSocketStays) {
  std::ofstream(directory_ + "/store") << "mine";
  const auto listener = at("store").listen();
  EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("not a socket"));
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/store"), 4u);
  EXPECT_THAT(std::string(SocketPath::open(directory_ + "/none/store").status().message()),
              HasSubstr("No such file"));
}

TEST_F(SocketPathTest, WhoHoldsTheLockIsNamed) {
  const int fd = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const auto listener = at("store").listen();
  EXPECT_TRUE(absl::IsUnavailable(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()),
              HasSubstr(absl::StrCat("pid ", ::getpid())));
  ::close(fd);
  EXPECT_TRUE(at("store").listen().ok());
}

TEST_F(SocketPathTest, ALockThatFailsIsAnErrorThatSaysSo) {
  if (!testing::can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  testing::run_with_refused_calls({{SYS_flock, EIO}}, [&] {
    const auto listener = at("store").listen();
    EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
    EXPECT_THAT(std::string(listener.status().message()),
                HasSubstr("locking its directory failed (Input/output error), expected a place for "
                          "a socket; choose another directory"));
  });
  EXPECT_EQ(entries(), 0U);
}

TEST_F(SocketPathTest, ADirectoryThatWentIsAnErrorWithThePath) {
  const SocketPath path = at("store");
  std::filesystem::remove_all(directory_);
  EXPECT_TRUE(absl::IsNotFound(path.connect().status()));
  const auto listener = path.listen();
  EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr(path.text()));
}

}  // namespace
}  // namespace tessera::internal
