#include "tessera/examples/program/digits.h"

#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <vector>

#include <torch/types.h>

namespace program {
namespace {

constexpr int64_t kDigits = 1797;
constexpr int64_t kPixels = 64;

}  // namespace

Digits read_digits() {
  const std::string path = TESSERA_DIGITS;
  std::vector<char> bytes(static_cast<size_t>(kDigits * (kPixels + 1)));
  std::ifstream file(path, std::ios::binary);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (file.gcount() != static_cast<std::streamsize>(bytes.size())) {
    throw std::runtime_error("digits: got " + std::to_string(file.gcount()) + " bytes from '" +
                             path + "', expected " + std::to_string(bytes.size()));
  }
  const at::Tensor rows =
      torch::from_blob(bytes.data(), {kDigits, kPixels + 1}, at::kByte).to(at::kFloat);
  return {.pixels = rows.narrow(1, 0, kPixels).reshape({kDigits, 1, 8, 8}) / 16.0,
          .digit = rows.select(1, kPixels).to(at::kLong)};
}

}  // namespace program
