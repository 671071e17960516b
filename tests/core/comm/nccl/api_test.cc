// Finding the library, and the errors if it is missing, too old or not NCCL.
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/comm/nccl/api.h"

namespace tessera::internal::nccl {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

absl::StatusOr<std::shared_ptr<const Api>> load(std::optional<std::string> path) {
  return load_api([path](const char* name) {
    return std::string(name) == "TESSERA_NCCL" ? path : std::nullopt;
  });
}

std::string error_of(const std::string& path) {
  const auto api = load(path);
  return api.ok() ? "none" : std::string(api.status().message());
}

TEST(NcclApi, LoadsWhatTheVariableNames) {
  const auto api = load(FAKE_NCCL_PATH);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->version, 22809);
  EXPECT_THAT((*api)->path, EndsWith("libnccl_fake.so"));
  EXPECT_NE((*api)->all_reduce, nullptr);
  EXPECT_NE((*api)->comm_window_register, nullptr);
}

TEST(NcclApi, AMissingLibraryIsNamedWithItsRemedy) {
  EXPECT_THAT(
      error_of("/no/such/libnccl.so.2"),
      AllOf(HasSubstr("[nccl] library: got none, looked for '/no/such/libnccl.so.2' ("),
            HasSubstr("cannot open shared object file"), HasSubstr("expected NCCL; "),
            HasSubstr("install NCCL 2.28 or newer"), HasSubstr("set TESSERA_NCCL to the path")));
}

TEST(NcclApi, AnOldLibraryIsNamedWithBothVersions) {
  EXPECT_THAT(error_of(OLD_NCCL_PATH),
              AllOf(HasSubstr("[nccl] library: got NCCL 2.27.7 at '"), HasSubstr("nccl_old"),
                    HasSubstr("expected 2.28.0 or newer; install NCCL 2.28 or newer")));
}

TEST(NcclApi, ALibraryThatLacksEntryPointsNamesThemAll) {
  EXPECT_THAT(
      error_of("libm.so.6"),
      AllOf(HasSubstr("[nccl] library: got '"), HasSubstr("/libm.so.6' without ncclGetVersion, "),
            HasSubstr(", ncclBroadcast, ncclReduce, ncclSend, ncclRecv, ncclMemAlloc, "),
            HasSubstr(", ncclCommWindowDeregister, expected NCCL; ")));
}

}  // namespace
}  // namespace tessera::internal::nccl
