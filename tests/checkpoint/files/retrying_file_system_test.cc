#include "tessera/checkpoint/files/retrying_file_system.h"

#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/directory/step_list.h"
#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/tests/checkpoint/simulated_file_system.h"

// Reads are retried after transient errors, and after no others.
namespace tessera::internal::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kShort = std::chrono::milliseconds(30);
constexpr auto kLong = std::chrono::minutes(10);  // a call that needs it hangs

std::unique_ptr<SimulatedFileSystem> with_a_file() {
  auto files = std::make_unique<SimulatedFileSystem>();
  EXPECT_TRUE(files->make_directory("/d").ok());
  files->put_file("/d/f", "content");
  return files;
}

TEST(RetryingFileSystem, ReadsAfterErrorsThatPass) {
  for (const int error : {EIO, ESTALE, ETIMEDOUT, EBUSY, EINTR, ENODEV}) {
    size_t points = 0;
    for (bool has_failed = true; has_failed; ++points) {
      const auto files = with_a_file();
      RetryingFileSystem retrying(*files, kLong);
      files->fail_at(points, error);  // once
      EXPECT_THAT(*retrying.list("/d"), ElementsAre("f"));
      EXPECT_EQ(retrying.entry("/d/f")->bytes, 7);
      const auto file = retrying.open("/d/f");
      ASSERT_TRUE(file.ok()) << file.status();
      std::string text(7, '\0');
      EXPECT_TRUE((*file)->read(0, absl::MakeSpan(text)).ok());
      EXPECT_EQ(text, "content");
      has_failed = files->has_failed();
    }
    EXPECT_EQ(points, 5U) << "list, entry, open, read, and none";
  }
}

TEST(RetryingFileSystem, GivesUpAtLastAndSaysWhy) {
  const auto files = with_a_file();
  files->crash_at(0);  // from now on every call fails with EIO
  RetryingFileSystem retrying(*files, kShort);
  const auto names = retrying.list("/d");
  EXPECT_THAT(std::string(names.status().message()), HasSubstr("'/d'"));
  EXPECT_EQ(errno_of(names.status()), EIO);
  EXPECT_GT(files->operations().size(), 0U);
}

TEST(RetryingFileSystem, DoesNotWaitForWhatStays) {
  const auto files = with_a_file();
  RetryingFileSystem retrying(*files, kLong);
  EXPECT_EQ(errno_of(retrying.open("/d/absent").status()), ENOENT);
  for (const int error : {EACCES, EPERM, ENOENT, EMFILE, ENOSYS}) {
    const auto copy = files->copy();
    RetryingFileSystem over(*copy, kLong);
    copy->fail_at(0, error);
    EXPECT_EQ(errno_of(over.list("/d").status()), error);
  }
}

/// Abseil maps these to the same code as ENOENT.
TEST(RetryingFileSystem, AFileSystemThatIsAwayIsNotAnAbsentFile) {
  for (const int error : {ENODEV, ENOMEDIUM, ESRCH}) {
    const absl::Status status = file_error(error, "list", "/d");
    EXPECT_FALSE(absl::IsNotFound(status)) << status;
    EXPECT_FALSE(is_damage(status)) << status;
    EXPECT_TRUE(is_transient(status)) << status;
  }
  EXPECT_TRUE(absl::IsNotFound(file_error(ENOENT, "list", "/d")));
}

/// A program's own file system, whose errors have no errno.
class OwnFileSystem final : public SimulatedFileSystem {
 public:
  explicit OwnFileSystem(absl::StatusCode code) : code_(code) {}
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override {
    if (std::exchange(has_failed_once_, true)) return SimulatedFileSystem::list(path);
    return absl::Status(code_, "[store] cannot list '" + path + "'");
  }

 private:
  const absl::StatusCode code_;
  bool has_failed_once_ = false;
};

TEST(RetryingFileSystem, GoesByTheCodesOfAProgramsOwnFileSystem) {
  OwnFileSystem away(absl::StatusCode::kUnavailable);
  EXPECT_TRUE(RetryingFileSystem(away, kLong).list("/").ok());
  for (const auto code : {absl::StatusCode::kInternal, absl::StatusCode::kPermissionDenied,
                          absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kUnknown}) {
    OwnFileSystem failing(code);
    const absl::Status status = RetryingFileSystem(failing, kLong).list("/").status();
    EXPECT_EQ(status.code(), code) << "at once";
    EXPECT_FALSE(is_damage(status)) << status;
  }
  EXPECT_FALSE(is_damage(absl::UnavailableError("")));
  for (const auto code : {absl::StatusCode::kNotFound, absl::StatusCode::kOutOfRange,
                          absl::StatusCode::kDataLoss, absl::StatusCode::kFailedPrecondition}) {
    EXPECT_TRUE(is_damage(absl::Status(code, "")));
  }
}

}  // namespace
}  // namespace tessera::internal::testing
