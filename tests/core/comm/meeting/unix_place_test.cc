#include "tessera/core/comm/meeting/unix_place.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
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

#include "tessera/tests/support/refused_calls.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Nothing here blocks.
const Deadline kSoon{};

class UnixPlaceTest : public ::testing::Test {
 protected:
  std::unique_ptr<UnixPlace> at(const std::string& name) const {
    return std::make_unique<UnixPlace>(absl::StrCat(directory_, "/", name));
  }
  /// Leaves a socket behind, as a killed process does.
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

  const testing::TemporaryDirectory temporary_;
  std::string directory_ = temporary_.path();
};

TEST_F(UnixPlaceTest, TheFirstListensAndTheOthersConnect) {
  const auto path = at("store");
  EXPECT_TRUE(absl::IsNotFound(path->connect(kSoon).status()));
  auto listener = path->listen(kSoon);
  ASSERT_TRUE(listener.ok()) << listener.status();
  ASSERT_NE(*listener, nullptr);
  EXPECT_TRUE(absl::IsAlreadyExists(path->listen(kSoon).status()));
  const auto socket = path->connect(kSoon);
  ASSERT_TRUE(socket.ok()) << socket.status();
  EXPECT_EQ(peer_pid(socket->get()), ::getpid());
  EXPECT_TRUE((*listener)->accept().is_open());
  listener->reset();
  EXPECT_EQ(entries(), 0u);
  EXPECT_TRUE(absl::IsNotFound(path->connect(kSoon).status()));
}

TEST_F(UnixPlaceTest, TheSocketGoesAlsoWhereNoDescriptorIsLeft) {
  auto listener = *at("store")->listen(kSoon);
  ASSERT_EQ(entries(), 1u);
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_LT(::socket(AF_UNIX, SOCK_STREAM, 0), 0);
  listener.reset();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(entries(), 0u);
}

TEST_F(UnixPlaceTest, PathsMayBeLongAndAFileNameThatIsTooLongIsNamed) {
  for (int i = 0; i < 20; ++i) directory_ += "/a-directory-with-quite-a-long-name";
  std::filesystem::create_directories(directory_);
  for (const size_t length : {1, 80}) {
    const auto path = at(std::string(length, 'n'));
    auto listener = path->listen(kSoon);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(path->connect(kSoon).ok());
    listener->reset();
    EXPECT_EQ(entries(), 0u);
  }
  const auto listener = at(std::string(108, 'n'))->listen(kSoon);
  EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()),
              AllOf(HasSubstr(directory_), HasSubstr("File name too long"),
                    HasSubstr("at most 80 bytes; choose another path")));
}

TEST_F(UnixPlaceTest, AnAbstractNameIsFreeAgainAndHasNoFile) {
  UnixPlace place(absl::StrCat("tessera-test/", ::getpid()));
  EXPECT_EQ(place.text(), absl::StrCat("@tessera-test/", ::getpid()));
  for (int again = 0; again < 2; ++again) {
    EXPECT_TRUE(absl::IsNotFound(place.connect(kSoon).status()));
    const auto listener = place.listen(kSoon);
    ASSERT_TRUE(listener.ok()) << listener.status();
    EXPECT_TRUE(absl::IsAlreadyExists(place.listen(kSoon).status()));
    EXPECT_EQ(peer_pid(place.connect(kSoon).value().get()), ::getpid());
  }
}

TEST_F(UnixPlaceTest, ADeadProcesssSocketIsReplacedAndOnlyThat) {
  leave_socket("store");
  ASSERT_EQ(entries(), 1u);
  const auto path = at("store");
  auto listener = path->listen(kSoon);
  ASSERT_TRUE(listener.ok() && *listener != nullptr);
  EXPECT_TRUE(path->connect(kSoon).ok());
}

TEST_F(UnixPlaceTest, WhoIsAboutToListenIsNotTakenForADeadProcess) {
  leave_socket("store");  // as between bind() and listen()
  const FileDescriptor other(::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_TRUE(absl::IsUnavailable(at("store")->listen(kSoon).status()));
  EXPECT_EQ(entries(), 1u);
  ASSERT_EQ(::flock(other.get(), LOCK_UN), 0);
  EXPECT_TRUE(at("store")->listen(kSoon).ok());
}

TEST_F(UnixPlaceTest, WhatIsNoSocketStays) {
  std::ofstream(directory_ + "/store") << "mine";
  const auto listener = at("store")->listen(kSoon);
  EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr("not a socket"));
  EXPECT_EQ(at("store")->connect(kSoon).status(), listener.status()) << "who waits hears it, too";
  EXPECT_EQ(std::filesystem::file_size(directory_ + "/store"), 4u);
  EXPECT_THAT(std::string(at("none/store")->listen(kSoon).status().message()),
              HasSubstr("No such file"));
}

TEST_F(UnixPlaceTest, ADirectoryThatWentIsAnErrorWithThePath) {
  const auto path = at("store");
  std::filesystem::remove_all(directory_);
  EXPECT_TRUE(absl::IsNotFound(path->connect(kSoon).status()));
  const auto listener = path->listen(kSoon);
  EXPECT_TRUE(absl::IsFailedPrecondition(listener.status()));
  EXPECT_THAT(std::string(listener.status().message()), HasSubstr(path->text()));
}

}  // namespace
}  // namespace tessera::internal
