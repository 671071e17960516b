#include "tessera/tools/run/visible_gpus.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

int visible(const std::string& list) {
  return count_visible_gpus({"CUDA_VISIBLE_DEVICES=" + list}, "/no/such/folder");
}

TEST(VisibleGpus, AreThoseOfTheListUpToTheFirstThatIsNone) {
  EXPECT_EQ(visible("0"), 1);
  EXPECT_EQ(visible("3, 1,GPU-8932f937,MIG-1"), 4);
  EXPECT_EQ(visible("0,-1,1"), 1);
  EXPECT_EQ(visible("-1"), 0);
  EXPECT_EQ(visible(""), 0);
}

TEST(VisibleGpus, AreTheDevicesWhereThereIsNoList) {
  const testing::TemporaryDirectory devices;
  EXPECT_EQ(count_visible_gpus({}, devices.path()), 0);
  for (const char* name : {"nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "null"}) {
    std::ofstream(devices.path() + "/" + name);
  }
  EXPECT_EQ(count_visible_gpus({"CUDA_VISIBLE_DEVICES_=7,8,9"}, devices.path()), 2);
  EXPECT_EQ(count_visible_gpus({"CUDA_VISIBLE_DEVICES="}, devices.path()), 0);
  EXPECT_EQ(count_visible_gpus({}, "/no/such/folder"), 0);
}

}  // namespace
}  // namespace tessera::internal
