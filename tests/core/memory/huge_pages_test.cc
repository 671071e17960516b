#include "tessera/core/memory/huge_pages.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

/// A memfd and the mappings that a test makes of it.
class HugePagesTest : public ::testing::Test {
 protected:
  static constexpr int64_t kBytes = 3 * kHugePageBytes + 4096;

  HugePagesTest() : fd(::memfd_create("test", MFD_CLOEXEC)) {}
  ~HugePagesTest() override { ::close(fd); }

  const int fd;
};

uintptr_t address(const char* memory) { return reinterpret_cast<uintptr_t>(memory); }

/// KiB of the mapping at `memory` that are mapped as huge pages.
int64_t huge_kib(const char* memory) {
  std::ifstream smaps("/proc/self/smaps");
  std::string line;
  bool is_here = false;
  while (std::getline(smaps, line)) {
    uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2)
      is_here = begin == address(memory);
    long kib = 0;
    if (is_here && (std::sscanf(line.c_str(), "ShmemPmdMapped: %ld", &kib) == 1) && kib > 0) {
      return kib;
    }
  }
  return 0;
}

TEST_F(HugePagesTest, BothMappingsOfAFileBeginOnAHugePageAndShareItsBytes) {
  ASSERT_EQ(::ftruncate(fd, kBytes), 0);
  char* const mine = map_on_huge_page(kBytes, fd, Writes::kShared);
  char* const peers = map_on_huge_page(kBytes, fd, Writes::kShared);
  ASSERT_NE(mine, nullptr);
  ASSERT_NE(peers, nullptr);
  EXPECT_EQ(address(mine) % uintptr_t{kHugePageBytes}, 0U);
  EXPECT_EQ(address(peers) % uintptr_t{kHugePageBytes}, 0U);
  for (int64_t i = 0; i < kBytes; i += 4096) mine[i] = static_cast<char>(i / 4096 % 127);
  move_into_huge_pages(mine, kBytes);
  for (int64_t i = 0; i < kBytes; i += 4096) {
    ASSERT_EQ(peers[i], static_cast<char>(i / 4096 % 127)) << i;
  }
  peers[kBytes - 1] = 5;
  EXPECT_EQ(mine[kBytes - 1], 5);
  EXPECT_EQ(::munmap(peers, kBytes), 0);
  EXPECT_EQ(::munmap(mine, kBytes), 0);
}

TEST_F(HugePagesTest, AMappingMadeAfterTheMoveIsInHugePagesWhereTheFirstOneIs) {
  ASSERT_EQ(::ftruncate(fd, kBytes), 0);
  char* const mine = map_on_huge_page(kBytes, fd, Writes::kShared);
  ASSERT_NE(mine, nullptr);
  EXPECT_EQ(huge_kib(mine), 0) << "a control: small pages unless somebody asks";
  move_into_huge_pages(mine, kBytes);
  char* const peers = map_on_huge_page(kBytes, fd, Writes::kShared);
  ASSERT_NE(peers, nullptr);
  EXPECT_EQ(huge_kib(peers), huge_kib(mine));
  ::munmap(peers, kBytes);
  ::munmap(mine, kBytes);
}

TEST(HugePages, PrivateMemoryIsZeroAndCanBeMovedToo) {
  constexpr int64_t kBytes = 2 * kHugePageBytes;
  char* const memory = map_on_huge_page(kBytes, -1, Writes::kPrivate);
  ASSERT_NE(memory, nullptr);
  EXPECT_EQ(memory[0], 0);
  memory[kBytes - 1] = 3;
  move_into_huge_pages(memory, kBytes);
  EXPECT_EQ(memory[0], 0);
  EXPECT_EQ(memory[kBytes - 1], 3);
  ::munmap(memory, kBytes);
}

TEST(HugePages, MoreThanTheAddressSpaceIsNull) {
  EXPECT_EQ(map_on_huge_page(int64_t{1} << 60, -1, Writes::kPrivate), nullptr);
}

}  // namespace
}  // namespace tessera::internal
