#include "tessera/core/process/control_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/tests/core/process/kernel_tree.h"

namespace tessera::internal {
namespace {

using ::testing::ElementsAre;
using testing::KernelTree;

/// Without the root of the tree.
std::vector<std::string> folders_in(const KernelTree& tree, const std::string& controller) {
  std::vector<std::string> folders = control_group_folders(controller, tree.root());
  for (std::string& folder : folders) folder.erase(0, tree.root().size());
  return folders;
}

TEST(ControlGroups, OfVersion2TheOwnOneAndItsParents) {
  const KernelTree tree;
  tree.show_version_2("/user.slice/job");
  EXPECT_THAT(folders_in(tree, "memory"),
              ElementsAre("/sys/fs/cgroup/user.slice/job", "/sys/fs/cgroup/user.slice",
                          "/sys/fs/cgroup", "/sys/fs/cgroup"));
  tree.show_version_2("/");  // in a namespace
  EXPECT_THAT(folders_in(tree, "memory"), ElementsAre("/sys/fs/cgroup", "/sys/fs/cgroup"));
  tree.show_version_2("/../job");  // outside of the namespace
  EXPECT_THAT(folders_in(tree, "memory"), ElementsAre("/sys/fs/cgroup", "/sys/fs/cgroup"));
}

TEST(ControlGroups, OfVersion1ThoseOfTheController) {
  const KernelTree tree;
  tree.write("/proc/self/cgroup",
             "5:cpu,cpuacct:/docker/a/b\n4:memory:/docker/ab\n0::/elsewhere\n");
  // A container without a namespace of its own: the paths are the host's, and its part is mounted.
  tree.write("/proc/self/mountinfo",
             "33 31 0:30 /docker/a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
             "35 31 0:32 /docker/a /sys/fs/cgroup/my\\040memory ro - cgroup cgroup rw,memory\n"
             "36 31 0:33 / /sys/fs/cgroup/devices ro - cgroup cgroup rw,devices\n"
             "40 31 0:37 / /sys/fs/cgroup/unified ro - cgroup2 cgroup2 rw\n");
  EXPECT_THAT(
      folders_in(tree, "cpu"),
      ElementsAre("/sys/fs/cgroup/cpu,cpuacct/b", "/sys/fs/cgroup/cpu,cpuacct",
                  "/sys/fs/cgroup/unified/elsewhere", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"));
  // Not below what is mounted.
  EXPECT_THAT(folders_in(tree, "memory"),
              ElementsAre("/sys/fs/cgroup/my memory", "/sys/fs/cgroup/unified/elsewhere",
                          "/sys/fs/cgroup/unified", "/sys/fs/cgroup"));
}

TEST(ControlGroups, WhereNothingIsKnownTheUsualPlace) {
  const KernelTree tree;
  EXPECT_THAT(folders_in(tree, "memory"), ElementsAre("/sys/fs/cgroup"));
  tree.write("/proc/self/cgroup", "\n:\n0:\n4:memory\n\xff\n");
  tree.write("/proc/self/mountinfo", " - \n - cgroup2\n1 2 3 / /sys/fs/cgroup - cgroup2\nx\n\\");
  EXPECT_THAT(folders_in(tree, "memory"), ElementsAre("/sys/fs/cgroup"));
}

}  // namespace
}  // namespace tessera::internal
