#include "tessera/core/process/available_memory.h"

#include <gtest/gtest.h>

#include <absl/strings/str_cat.h>

#include "tessera/tests/core/process/kernel_tree.h"

namespace tessera::internal {
namespace {

using testing::KernelTree;

constexpr int64_t kHost = (8000 + 1000) * int64_t{1024};

class AvailableMemory : public ::testing::Test {
 protected:
  AvailableMemory() {
    tree_.write("/proc/meminfo",
                "MemTotal:  16000 kB\nMemFree:  10 kB\nMemAvailable:  8000 kB\n"
                "SwapTotal:  2000 kB\nSwapFree:  1000 kB\nHugePages_Total:  0\n");
  }
  int64_t bytes() const { return available_memory_bytes(tree_.root()); }
  /// The limit of a control group of version 2 and what it uses.
  void write(const std::string& folder, const std::string& most, int64_t used,
             const std::string& stat = "") const {
    tree_.write(folder + "/memory.max", most + "\n");
    tree_.write(folder + "/memory.current", absl::StrCat(used, "\n"));
    tree_.write(folder + "/memory.stat", stat);
  }

  const KernelTree tree_;
};

TEST_F(AvailableMemory, WithoutLimitsIsTheHosts) {
  EXPECT_EQ(bytes(), kHost);
  tree_.show_version_2("/");
  EXPECT_EQ(bytes(), kHost);
  write("/sys/fs/cgroup", "max", 5000);
  EXPECT_EQ(bytes(), kHost);
}

TEST_F(AvailableMemory, OfAContainerIsWhatIsLeftAndWhatTheKernelGivesBack) {
  tree_.show_version_2("/");
  write("/sys/fs/cgroup", "1000000", 900000);
  EXPECT_EQ(bytes(), 100000);
  write("/sys/fs/cgroup", "1000000", 900000,
        "anon 100000\nfile 500000\nshmem 200000\ninactive_anon 200000\nactive_anon 100000\n"
        "inactive_file 1000\nactive_file 299000\nunevictable 7\nslab_reclaimable 10000\n");
  EXPECT_EQ(bytes(), 100000 + 1000 + 299000 + 10000);
  write("/sys/fs/cgroup", "1000000", 1000500);
  EXPECT_EQ(bytes(), 0);
  write("/sys/fs/cgroup", "999999999999", 0);
  EXPECT_EQ(bytes(), kHost);
}

TEST_F(AvailableMemory, ALimitIsAlsoThatOfAParent) {
  tree_.show_version_2("/a/b");
  write("/sys/fs/cgroup/a/b", "max", 100000);
  write("/sys/fs/cgroup/a", "1000000", 600000, "active_file 50000\n");
  EXPECT_EQ(bytes(), 450000);
  write("/sys/fs/cgroup/a/b", "200000", 100000);
  EXPECT_EQ(bytes(), 100000);
}

TEST_F(AvailableMemory, Version1CountsWithTheGroupsInside) {
  tree_.write("/proc/self/cgroup", "4:memory:/a\n0::/\n");
  const std::string top = "/sys/fs/cgroup/memory";
  tree_.write(top + "/memory.limit_in_bytes", "9223372036854771712\n");
  tree_.write(top + "/memory.usage_in_bytes", "5000000\n");
  EXPECT_EQ(bytes(), kHost);
  tree_.write(top + "/a/memory.limit_in_bytes", "1000000\n");
  tree_.write(top + "/a/memory.usage_in_bytes", "900000\n");
  tree_.write(top + "/a/memory.stat",
              "cache 400000\nshmem 1000\ninactive_file 1\nactive_file 2\n"
              "total_cache 400000\ntotal_inactive_file 30000\ntotal_active_file 40000\n");
  EXPECT_EQ(bytes(), 170000);
}

TEST_F(AvailableMemory, ALimitThatIsShownWithoutAHierarchyCounts) {
  tree_.write("/proc/self/cgroup", "4:memory:/a\n");
  write("/sys/fs/cgroup", "1000000", 990000, "inactive_file 0\nactive_file 200000\n");
  EXPECT_EQ(bytes(), 210000);
}

TEST_F(AvailableMemory, WhatIsNoNumberIsNoLimit) {
  tree_.show_version_2("/");
  for (const char* text : {"", "-1", "many", "99999999999999999999"}) {
    write("/sys/fs/cgroup", text, 1000, "active_file\nx 9\n");
    EXPECT_EQ(bytes(), kHost) << text;
  }
  write("/sys/fs/cgroup", "100000", 1000, "active_file -5\ninactive_file 9999999999999999999999\n");
  EXPECT_EQ(bytes(), 99000);
  tree_.write("/sys/fs/cgroup/memory.current", "");
  EXPECT_EQ(bytes(), kHost);
}

}  // namespace
}  // namespace tessera::internal
