// Lists of SLURM: hosts, and how many tasks each has.
#include "tessera/core/process/launchers.h"

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(SlurmLists, TheFirstHostIsFound) {
  EXPECT_EQ(first_host("node03"), "node03");
  EXPECT_EQ(first_host("node03,login"), "node03");
  EXPECT_EQ(first_host("node[03-07,09],login"), "node03");
  EXPECT_EQ(first_host("node[9,11-12]-ib"), "node9-ib");
  EXPECT_EQ(first_host("rack[1-2]node[05-06]"), "rack1node05");
  EXPECT_EQ(first_host("node[03-07"), "");
  EXPECT_EQ(first_host(""), "");
}

TEST(SlurmLists, EveryNodeHasItsTasks) {
  EXPECT_EQ(tasks_of_node("4(x2),3", 0), 4);
  EXPECT_EQ(tasks_of_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_of_node("4(x2),3", 2), 3);
  EXPECT_EQ(tasks_of_node("4(x2),3", 3), std::nullopt);
}

}  // namespace
}  // namespace tessera::internal
