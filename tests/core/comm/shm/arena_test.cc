// Shared memory of one rank: alignment, reuse, mapping once, and running out.
#include "tessera/core/comm/shm/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/support/file_size_limit.h"
#include "tessera/tests/support/message_of.h"
#include "tessera/tests/support/refused_calls.h"

namespace tessera::internal::shm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Bytes that the kernel has allocated for a descriptor.
int64_t kernel_bytes(int fd) {
  struct stat file {};
  EXPECT_EQ(::fstat(fd, &file), 0);
  return file.st_blocks * 512;
}

/// Bytes that the kernel has allocated for the segment of `block`.
int64_t reserved_bytes(Arena& arena, const void* block) {
  return kernel_bytes(arena.find(block, 1)->fd);
}

TEST(Arena, BlocksAreAlignedApartAndReused) {
  auto arena = Arena::create();
  std::vector<char*> blocks;
  for (const int64_t bytes : {1, 4096, 5000, 100000}) {
    blocks.push_back(arena->allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(blocks.back()) % 4096, 0u);
    std::memset(blocks.back(), static_cast<int>(blocks.size()), bytes);
  }
  EXPECT_EQ(blocks[0][0], 1);
  EXPECT_EQ(blocks[2][4999], 3);
  const int64_t reserved = reserved_bytes(*arena, blocks[0]);
  arena->free(blocks[1]);
  arena->free(blocks[2]);
  // The two neighbours have joined to one hole of three pages.
  EXPECT_EQ(arena->allocate(3 * 4096), blocks[1]);
  EXPECT_EQ(reserved_bytes(*arena, blocks[0]), reserved);
  EXPECT_EQ(blocks[3][99999], 4);
}

TEST(Arena, ManyRoundsOfTensorsReserveNoMore) {
  auto arena = Arena::create();
  int64_t reserved = 0;
  for (int round = 0; round < 20; ++round) {
    std::vector<at::Tensor> tensors;
    for (int i = 1; i < 30; ++i) tensors.push_back(arena->allocate_tensor(i * 10000, at::kFloat));
    for (int i = 0; i < 29; i += 2) tensors[i] = at::Tensor();
    tensors.push_back(arena->allocate_tensor(3, at::kByte));
    const int64_t now_reserved = reserved_bytes(*arena, tensors.back().const_data_ptr());
    if (round == 0) reserved = now_reserved;
    EXPECT_EQ(now_reserved, reserved);
  }
}

TEST(Arena, ManyBlocksTakeOneDescriptorAndTheMemoryThatTheyNeed) {
  auto arena = Arena::create();
  std::set<int> descriptors;
  int64_t asked_bytes = 0;
  // Just above two huge pages: each block rounded up to huge pages would waste a third.
  for (int i = 0; i < 12; ++i) {
    const int64_t bytes = (int64_t{4} << 20) + 4096 + i;
    char* const block = arena->allocate(bytes);
    std::memset(block, i, bytes);
    asked_bytes += bytes;
    descriptors.insert(arena->find(block, bytes)->fd);
  }
  ASSERT_EQ(descriptors.size(), 1u);
  EXPECT_GE(kernel_bytes(*descriptors.begin()), asked_bytes);
  EXPECT_LE(kernel_bytes(*descriptors.begin()), asked_bytes + (1 << 20));
  // More than the first segment has room for; each later segment is as large as all earlier ones.
  for (int i = 0; i < 6; ++i) {
    descriptors.insert(arena->find(arena->allocate(int64_t{12} << 20), 1)->fd);
  }
  EXPECT_EQ(descriptors.size(), 2u);
}

TEST(Arena, AHoleAtTheEndGrowsIntoTheBlockThatIsAskedFor) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  auto arena = Arena::create();
  char* const first = arena->allocate(2 * kMiB);
  char* const second = arena->allocate(2 * kMiB);
  arena->free(second);
  EXPECT_EQ(arena->allocate(5 * kMiB), second);
  EXPECT_EQ(reserved_bytes(*arena, first), 7 * kMiB);
  EXPECT_TRUE(arena->find(first, 7 * kMiB).has_value());
  EXPECT_FALSE(arena->find(first, 8 * kMiB).has_value()) << "room is no memory";
}

TEST(Arena, AMappingShowsWhatASegmentGrowsBy) {
  const auto segment = Segment::create(4096, 1 << 20);
  ASSERT_EQ(segment->room_bytes(), 1 << 20);
  void* const peers =
      ::mmap(nullptr, segment->room_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, segment->fd(), 0);
  ASSERT_NE(peers, MAP_FAILED);
  EXPECT_EQ(kernel_bytes(segment->fd()), 4096);
  segment->grow(8192);
  EXPECT_EQ(kernel_bytes(segment->fd()), 12288);
  segment->data()[12287] = 7;
  EXPECT_EQ(static_cast<char*>(peers)[12287], 7);
  ::munmap(peers, segment->room_bytes());
}

/// Ends the process with the arena's error when no descriptor is left.
[[noreturn]] void allocate_without_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  const int next = ::dup(STDERR_FILENO);  // the lowest free number
  ::close(next);
  limit.rlim_cur = static_cast<rlim_t>(next);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) std::perror("setrlimit");
  try {
    Arena::create()->allocate(4096);
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  }
  std::_Exit(0);
}

TEST(Arena, WhereNoDescriptorIsLeftTheLimitIsNamed) {
  EXPECT_EXIT(allocate_without_descriptors(), ::testing::ExitedWithCode(0),
              "Too many open files; raise ulimit -n");
}

TEST(Arena, ATensorKeepsTheArena) {
  auto arena = Arena::create();
  at::Tensor tensor = arena->allocate_tensor(1000, at::kDouble);
  arena.reset();
  tensor.fill_(2);
  EXPECT_EQ(tensor.sum().item<double>(), 2000.0);
}

TEST(Arena, FindsWhatLiesInside) {
  auto arena = Arena::create();
  const at::Tensor inside = arena->allocate_tensor(1000, at::kFloat);
  const at::Tensor outside = at::empty({1000});
  const auto range = arena->find(inside[3].data_ptr(), 4);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->offset_bytes % 4096, 12u);
  EXPECT_FALSE(arena->find(outside.data_ptr(), 4).has_value());
  EXPECT_FALSE(arena->find(inside.data_ptr(), int64_t{1} << 30).has_value());
}

TEST(Arena, OneProcessMapsASegmentOnce) {
  auto segment = Segment::create(10000);
  EXPECT_EQ(segment->room_bytes(), 12288);
  auto same = Segment::open(segment->range(4096));
  EXPECT_EQ(same.get(), segment.get());
}

TEST(Arena, SegmentsAreNotInherited) {
  auto segment = Segment::create(10000);
  EXPECT_EQ(::fcntl(segment->fd(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST(Arena, MemoryIsThereFromTheStart) {
  auto segment = Segment::create(1 << 20);
  unsigned char resident[256] = {};
  ASSERT_EQ(::mincore(segment->data(), 1 << 20, resident), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 1);
}

TEST(Arena, NoSpaceIsAnErrorWithTheSizeAndNotASignal) {
  std::string text;
  auto arena = Arena::create();
  {
    const testing::NoFileSizeSignal no_signal;
    const testing::FileSizeLimit limit(1 << 20);
    try {
      arena->allocate(2 << 20);
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    EXPECT_NE(arena->allocate(1000), nullptr) << "what fits still works";
  }
  EXPECT_THAT(text, HasSubstr("got no space for 2097152 bytes, expected a new segment"));
  EXPECT_THAT(text, HasSubstr("File too large; raise ulimit -f"));
  // More than any machine has. The kernel would try, page by page, and kill a process when none are
  // left.
  try {
    arena->allocate(int64_t{1} << 60);
    FAIL() << "an exbibyte";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("bytes left; free memory or use less"));
  }
}

/// Returns the error if memfd_create fails with `error`.
std::string error_where_memfd_create_fails(int error) {
  std::string text;
  testing::run_with_refused_calls({{SYS_memfd_create, error}}, [&] {
    text = testing::message_of([] { Segment::create(10000); });
  });
  return text;
}

TEST(Arena, TheCallThatTheSystemRefusesIsNamedWithARemedy) {
  if (!testing::can_refuse_calls()) GTEST_SKIP() << "not run: this kernel has no seccomp filters";
  const auto says = [](const char* text) {
    return AllOf(HasSubstr("[comm] shared memory: got no file for a segment of 12288 bytes"),
                 HasSubstr(text));
  };
  for (const int error : {EPERM, ENOSYS}) {
    EXPECT_THAT(error_where_memfd_create_fails(error),
                says("; a seccomp profile or an old kernel refuses it: allow memfd_create"));
  }
  EXPECT_THAT(error_where_memfd_create_fails(EMFILE),
              says("memfd_create said: Too many open files; raise ulimit -n"));
  EXPECT_THAT(error_where_memfd_create_fails(ENOMEM), says("; free memory or use less"));
}

TEST(Arena, APeerThatIsGoneIsAnError) {
  SharedRange range;
  range.segment = {.device = 1, .inode = 12345};
  range.segment_bytes = 4096;
  range.pid = ::getpid();
  range.fd = 9999;
  try {
    Segment::open(range);
    FAIL() << "no such descriptor";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("got no access to /proc/"));
  }
}

/// Closes the segment's descriptor, so that another file takes its number.
TEST(Arena, AnotherFileInThePlaceOfASegmentIsAnErrorThatNamesBoth) {
  SharedRange range = Segment::create(10000)->range(0);
  const std::shared_ptr<Segment> other = Segment::create(10000);
  ASSERT_EQ(other->fd(), range.fd) << "the kernel gives the lowest free number";
  try {
    Segment::open(range);
    FAIL() << "another segment of the same size";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("got another file at /proc/"));
    EXPECT_THAT(error.what_without_backtrace(),
                HasSubstr("inode " + std::to_string(range.segment.inode)));
  }
  EXPECT_THROW(Segment::map_privately(range), c10::Error);
  // The control: its own id finds it.
  EXPECT_EQ(Segment::open(other->range(0)), other);
}

TEST(Arena, ASegmentIsCalledWhatTheKernelCallsItsFile) {
  const auto segment = Segment::create(10000);
  struct stat file {};
  ASSERT_EQ(::fstat(segment->fd(), &file), 0);
  EXPECT_EQ(segment->range(0).segment.device, file.st_dev);
  EXPECT_EQ(segment->range(0).segment.inode, file.st_ino);
}

TEST(Arena, ThreadsAllocateAtOnce) {
  auto arena = Arena::create();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&arena, i] {
      for (int round = 0; round < 200; ++round) {
        at::Tensor tensor = arena->allocate_tensor(100 * (i + 1), at::kInt);
        std::memset(tensor.data_ptr(), i, tensor.nbytes());
        const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
        for (size_t b = 0; b < tensor.nbytes(); ++b) ASSERT_EQ(bytes[b], i);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace tessera::internal::shm
