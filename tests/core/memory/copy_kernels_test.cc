#include "tessera/core/memory/copy_kernels.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

namespace tessera::internal {
namespace {

std::string numbers(int64_t bytes) {
  std::string text(static_cast<size_t>(bytes), '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 7 + i / 251);
  return text;
}

TEST(CopyStreaming, CopiesEveryByteAndNoOtherAtAnyAlignment) {
  constexpr int64_t kMargin = 80;
  const std::string from = numbers(5000);
  for (const int64_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 128, 129, 200, 4096, 4801}) {
    for (int64_t target_shift = 0; target_shift < 70; target_shift += target_shift < 18 ? 1 : 13) {
      for (const int64_t source_shift : {0, 1, 8, 16, 31, 64}) {
        std::string to(static_cast<size_t>(bytes + 2 * kMargin), 'x');
        std::string wanted = to;
        copy_streaming(to.data() + target_shift, from.data() + source_shift, bytes);
        std::memcpy(wanted.data() + target_shift, from.data() + source_shift,
                    static_cast<size_t>(bytes));
        ASSERT_EQ(to, wanted) << bytes << " bytes to " << target_shift << " from " << source_shift;
      }
    }
  }
}

TEST(CopyStreaming, NegativeControlOfTheContent) {
  const std::string from = numbers(5000);
  EXPECT_NE(from.substr(0, 100), from.substr(64, 100));
  EXPECT_NE(from.substr(0, 100), from.substr(16, 100));
}

TEST(StreamingPays, OnlyBeyondTheCacheAndSoonerWithMoreRanks) {
  EXPECT_FALSE(streaming_pays(0, 1));
  EXPECT_FALSE(streaming_pays(int64_t{64} << 10, 2));
  EXPECT_TRUE(streaming_pays(int64_t{1} << 40, 1));
  for (const int ranks : {1, 2, 3, 8}) {
    int64_t largest = 1;
    while (!streaming_pays(largest * 2, ranks)) largest *= 2;
    EXPECT_FALSE(streaming_pays(largest, ranks));
    EXPECT_TRUE(streaming_pays(largest * 2, ranks * 2));
    EXPECT_TRUE(streaming_pays(largest + 1, ranks * 2)) << "twice the ranks, half the bytes";
  }
}

}  // namespace
}  // namespace tessera::internal
