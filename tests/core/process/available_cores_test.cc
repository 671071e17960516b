#include "tessera/core/process/available_cores.h"

#include <sched.h>
#include <unistd.h>

#include <optional>

#include <gtest/gtest.h>

#include "tessera/tests/core/process/kernel_tree.h"

namespace tessera::internal {
namespace {

using testing::KernelTree;

TEST(AvailableCores, AreThoseOfTheProcessUpToTheQuota) {
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(own), &own), 0);
  const std::vector<int> cores = cores_of();
  ASSERT_EQ(cores.size(), static_cast<size_t>(CPU_COUNT(&own)));
  for (const int core : cores) EXPECT_TRUE(CPU_ISSET(core, &own));
  EXPECT_EQ(cores_of({::getpid(), ::getpid()}), cores);
  EXPECT_TRUE(cores_of({}).empty());
  const auto count = static_cast<int>(cores.size());
  EXPECT_EQ(available_cores(), std::min(count, core_quota().value_or(count)));
}

TEST(CoreQuota, OfVersion2IsRoundedDownAndNeverNone) {
  const KernelTree tree;
  EXPECT_EQ(core_quota(tree.root()), std::nullopt);
  tree.show_version_2("/");
  const std::pair<const char*, std::optional<int>> cases[] = {
      {"max 100000\n", std::nullopt}, {"200000 100000\n", 2}, {"150000 100000\n", 1},
      {"399999 100000\n", 3},         {"50000 100000\n", 1},  {"1000 1000000\n", 1},
      {"100000\n", std::nullopt},     {"", std::nullopt},     {"many 100000\n", std::nullopt},
      {"1 0\n", std::nullopt}};
  for (const auto& [text, cores] : cases) {
    tree.write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(core_quota(tree.root()), cores) << text;
  }
}

TEST(CoreQuota, IsAlsoThatOfAParent) {
  const KernelTree tree;
  tree.show_version_2("/a/b");
  tree.write("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
  EXPECT_EQ(core_quota(tree.root()), 3);
  tree.write("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
  EXPECT_EQ(core_quota(tree.root()), 3);
  tree.write("/sys/fs/cgroup/a/b/cpu.max", "100000 50000\n");
  EXPECT_EQ(core_quota(tree.root()), 2);
  tree.write("/sys/fs/cgroup/a/b/cpu.max", "800000 100000\n");
  EXPECT_EQ(core_quota(tree.root()), 3);
}

TEST(CoreQuota, OfAContainerIsThatOfTheTop) {
  const KernelTree tree;
  tree.write("/sys/fs/cgroup/cpu.max", "200000 100000\n");
  for (const char* own : {"/", "/../job", "/docker/of/the/host"}) {
    tree.show_version_2(own);
    EXPECT_EQ(core_quota(tree.root()), 2) << own;
  }
}

TEST(CoreQuota, OfVersion1) {
  const KernelTree tree;
  tree.write("/proc/self/cgroup", "4:memory:/a\n1:cpu,cpuacct:/a\nx\n:\n");
  tree.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  tree.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(core_quota(tree.root()), std::nullopt);
  tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(core_quota(tree.root()), std::nullopt);
  tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(core_quota(tree.root()), 2);
}

}  // namespace
}  // namespace tessera::internal
