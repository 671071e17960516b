#include "tessera/rendezvous.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <vector>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

TEST(Rendezvous, TheStoreMayGoAsSoonAsOneRankIsThrough) {
  // A FileStore that is closed after its directory was removed retries for minutes.
  for (const int size : {2, 3}) {
    char directory[] = "/tmp/tessera-rendezvous-XXXXXX";
    ASSERT_NE(::mkdtemp(directory), nullptr);
    const std::string url = absl::StrCat("file://", directory, "/store");
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < size; ++rank) {
      ranks.emplace_back([&, rank] {
        const auto world = init_process_group({.rank = rank,
                                               .world_size = size,
                                               .store_url = url,
                                               .timeout = std::chrono::seconds(30)});
        if (rank == size - 1) std::filesystem::remove_all(directory);
        world->barrier();
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_FALSE(std::filesystem::exists(directory)) << "a store was written after init";
  }
}

}  // namespace
}  // namespace tessera::internal
