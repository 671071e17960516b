#include "tessera/examples/program/idx_file.h"

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

#include <ATen/ops/from_blob.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

namespace program {
namespace {

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw std::runtime_error(absl::StrCat("[data] '", path, "': ", what));
}

std::vector<unsigned char> bytes_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    fail(path, "got a directory, expected a file of MNIST; correct --data");
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string why = std::strerror(errno != 0 ? errno : ENOENT);
    if (std::filesystem::exists(path + ".gz", ignored)) {
      fail(path, absl::StrCat("got only '", path, ".gz', expected it unpacked; gunzip -k '", path,
                              ".gz'"));
    }
    fail(path, absl::StrCat(why, "; --data takes the directory of MNIST's four files"));
  }
  std::vector<unsigned char> bytes((std::istreambuf_iterator<char>(file)),
                                   std::istreambuf_iterator<char>());
  if (file.bad()) fail(path, "cannot be read to its end; copy it again");
  return bytes;
}

}  // namespace

at::Tensor read_idx_file(const std::string& path, int dimensions) {
  const std::vector<unsigned char> bytes = bytes_of(path);
  if (bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
    fail(path, absl::StrCat("got a gzip file, expected it unpacked; mv '", path, "' '", path,
                            ".gz' && gunzip '", path, ".gz'"));
  }
  const size_t head = 4 * (1 + static_cast<size_t>(dimensions));
  if (bytes.size() < head) {
    fail(path, absl::StrCat("got ", bytes.size(), " bytes, expected ", head,
                            " at least; fetch it again"));
  }
  const auto word = [&](size_t i) {
    uint32_t value = 0;
    for (size_t byte = 4 * i; byte < 4 * i + 4; ++byte) value = value << 8 | bytes[byte];
    return value;
  };
  const uint32_t expected = 0x0800 + static_cast<uint32_t>(dimensions);  // 08: uint8
  if (word(0) != expected) {
    fail(path, absl::StrCat("begins with ", absl::Hex(word(0), absl::kZeroPad8), ", expected ",
                            absl::Hex(expected, absl::kZeroPad8), ", as an IDX file of bytes in ",
                            dimensions, dimensions == 1 ? " dimension" : " dimensions",
                            " does; is it another of the four files?"));
  }
  std::vector<int64_t> sizes;
  uint64_t left = bytes.size() - head;  // is divided by each size in turn
  bool fits = true;
  for (size_t i = 1; i <= static_cast<size_t>(dimensions); ++i) {
    sizes.push_back(word(i));
    fits = fits && word(i) > 0 && left % word(i) == 0;
    if (fits) left /= word(i);
  }
  if (!fits || left != 1) {
    fail(path, absl::StrCat("got ", bytes.size() - head, " bytes of data, expected ",
                            absl::StrJoin(sizes, " x "),
                            ", as its head says, and none of them 0; fetch it again"));
  }
  return at::from_blob(const_cast<unsigned char*>(bytes.data() + head), sizes, at::kByte).clone();
}

}  // namespace program
