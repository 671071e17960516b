// The GPU architectures in the built module, read from the file itself because cuobjdump may be
// missing.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::internal::cuda {
namespace {

template <typename T>
T read(const std::string& bytes, size_t at) {
  T value = {};
  if (at + sizeof(T) <= bytes.size()) std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// The code in each fat binary of a file: "sm_80" for machine code, "compute_100" for PTX. A fat
/// binary has a header (magic, version, size of the header, size of the rest) and entries, each
/// with its kind, the sizes of its header and payload and, at byte 28, the architecture.
std::vector<std::vector<std::string>> code_in(const std::string& bytes) {
  constexpr uint32_t kMagic = 0xBA55ED50;
  std::vector<std::vector<std::string>> binaries;
  for (size_t at = 0; at + 16 < bytes.size(); at += 4) {
    if (read<uint32_t>(bytes, at) != kMagic || read<uint16_t>(bytes, at + 6) != 16) continue;
    const size_t end = at + 16 + read<uint64_t>(bytes, at + 8);
    if (end > bytes.size()) continue;
    std::vector<std::string>& code = binaries.emplace_back();
    for (size_t entry = at + 16; entry < end;) {
      const bool is_ptx = read<uint16_t>(bytes, entry) == 1;
      code.push_back((is_ptx ? "compute_" : "sm_") +
                     std::to_string(read<uint32_t>(bytes, entry + 28)));
      const uint64_t size = read<uint32_t>(bytes, entry + 4) + read<uint64_t>(bytes, entry + 8);
      if (size == 0) break;
      entry += size;
    }
    std::sort(code.begin(), code.end());
  }
  return binaries;
}

std::string contents(const char* path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CudaArchitectures, EveryKernelFileIsThereForAllOfThem) {
  const auto binaries = code_in(contents(CUDA_MODULE_PATH));
  // One for each of adamw.cu, gradient.cu and step.cu, and those of the CUDA runtime, if any.
  const std::vector<std::string> expected = {"compute_100", "sm_100", "sm_80", "sm_90"};
  EXPECT_EQ(std::count(binaries.begin(), binaries.end(), expected), 3)
      << ::testing::PrintToString(binaries);
}

TEST(CudaArchitectures, NegativeControlAFileWithoutDeviceCodeHasNone) {
  EXPECT_TRUE(code_in(contents(OTHER_CUDA_MODULE_PATH)).empty());
}

}  // namespace
}  // namespace tessera::internal::cuda
