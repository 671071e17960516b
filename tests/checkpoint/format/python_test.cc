// Other programs read our files: the reader that docs/checkpoint-format.md shows, and PyPI's
// safetensors package, if it is there.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/dtype_names.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/safetensors.h"
#include "tessera/tests/checkpoint/small_run.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

using testing::SmallRun;

/// Returns the output of `python -c script arguments...`; "" and a test failure if it fails.
std::string output_of(const std::string& python, const std::string& script,
                      const std::string& arguments) {
  const std::string command = absl::StrCat(python, " -B -c '", script, "' ", arguments, " 2>&1");
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  char part[4096];
  for (size_t count = 1; count > 0;) {
    count = std::fread(part, 1, sizeof(part), pipe);
    output.append(part, count);
  }
  EXPECT_EQ(::pclose(pipe), 0) << output;
  return output;
}

std::string line_of(const std::string& name, const EntryForm& form, const std::string& bytes) {
  return absl::StrCat(name, " ", std::string(dtype_name(form.dtype)), " [",
                      absl::StrJoin(form.sizes, ", "), "] ", absl::BytesToHexString(bytes), "\n");
}

class PythonTest : public ::testing::Test {
 protected:
  PythonTest() { EXPECT_TRUE(run_.save(files_, 10).ok()); }

  testing::TemporaryDirectory directory_;
  PosixFileSystem files_;
  const SmallRun run_{.directory = directory_.path(), .world = 2};
};

TEST_F(PythonTest, TheReaderOfTheFormatsPageReadsAStep) {
  const std::string script = R"(
import re, sys
page = open(sys.argv[1], encoding="utf-8").read()
exec(re.search("```python\n(.*?)```", page, re.S).group(1))
manifest, values = read_step(sys.argv[2])
assert manifest["step"] == 10 and manifest["extras"]["loss"] == 0.1
for name, entry in sorted(manifest["entries"].items()):
    print(name, entry["dtype"], entry["sizes"], values[name].hex())
)";
  std::string expected;
  for (const auto& [name, form] : run_.forms()) {
    expected += line_of(name, form, SmallRun::values(name, form, 10));
  }
  EXPECT_EQ(output_of("python3", script, absl::StrCat(TESSERA_FORMAT_PAGE, " ", run_.path_of(10))),
            expected);
}

/// The Python that has the package (safetensors_package.sh).
std::string python_with_safetensors() {
  const char* const python = std::getenv("TESSERA_SAFETENSORS_PYTHON");
  return python == nullptr ? "" : python;
}

TEST_F(PythonTest, TheSafetensorsPackageReadsTheFilesOfRanks) {
  const std::string python = python_with_safetensors();
  if (python.empty()) GTEST_SKIP() << "TESSERA_SAFETENSORS_PYTHON: not set";
  const std::string script = R"(
import sys
from safetensors import deserialize
for path in sys.argv[1:]:
    for name, tensor in sorted(deserialize(open(path, "rb").read())):
        print(name, tensor["dtype"], tensor["shape"], bytes(tensor["data"]).hex())
)";
  std::string expected, paths;
  for (int64_t rank = 0; rank < run_.world; ++rank) {
    absl::StrAppend(&paths, " ", run_.path_of(10), "/rank-0000", rank, "-of-00002.safetensors");
    std::map<std::string, std::string> lines;
    for (const ShardPiece& piece : run_.pieces(rank)) {
      const auto element = static_cast<size_t>(piece.form.element_bytes());
      const std::string bytes = SmallRun::values(piece.entry, piece.form, 10)
                                    .substr(static_cast<size_t>(piece.begin) * element,
                                            static_cast<size_t>(piece.end - piece.begin) * element);
      const EntryForm form{piece.tensor_shape(), {}, piece.form.dtype};
      lines[piece.tensor_name()] = line_of(piece.tensor_name(), form, bytes);
    }
    for (const auto& [name, line] : lines) expected += line;
  }
  EXPECT_EQ(output_of(python, script, paths), expected);
}

TEST_F(PythonTest, TheSafetensorsPackageReadsAnExportedModel) {
  const std::string python = python_with_safetensors();
  if (python.empty()) GTEST_SKIP() << "TESSERA_SAFETENSORS_PYTHON: not set";
  const std::string path = directory_.path() + "/model.safetensors";
  EXPECT_EQ(std::system(absl::StrCat(TESSERA_CHECKPOINT_PATH, " export ", run_.directory, " ", path,
                                     " >", path, ".log")
                            .c_str()),
            0);
  const std::string script = R"(
import sys
from safetensors import deserialize
for name, tensor in sorted(deserialize(open(sys.argv[1], "rb").read())):
    print(name, tensor["dtype"], tensor["shape"], bytes(tensor["data"]).hex())
)";
  std::string expected;
  for (const auto& [name, form] : run_.forms()) {
    if (name.rfind("model.", 0) != 0) continue;
    std::string bytes = SmallRun::values(name, form, 10);
    if (!form.is_row_major()) {  // [4, 3] with strides [1, 4]
      const std::string memory = bytes;
      for (size_t i = 0; i < 12; ++i) bytes.replace(i * 4, 4, memory, (i / 3 + i % 3 * 4) * 4, 4);
    }
    expected += line_of(name.substr(6), form, bytes);
  }
  EXPECT_EQ(output_of(python, script, path), expected);
}

TEST_F(PythonTest, AFileOfTheSafetensorsPackageIsLoaded) {
  const std::string python = python_with_safetensors();
  if (python.empty()) GTEST_SKIP() << "TESSERA_SAFETENSORS_PYTHON: not set";
  const std::string path = directory_.path() + "/theirs.safetensors";
  const std::string script = R"(
import ctypes, struct, sys
from safetensors import TensorSpec, serialize_file
data = ctypes.create_string_buffer(struct.pack("<6f", 1, 2, 3, 4, 5, 6), 24)
at = ctypes.addressof(data)
spec = lambda shape, size: TensorSpec(dtype="float32", shape=shape, data_ptr=at, data_len=size)
serialize_file({"weight": spec([2, 3], 24), "bias": spec([2], 8)}, sys.argv[1], None)
)";
  EXPECT_EQ(output_of(python, script, path), "");
  torch::nn::Linear model(3, 2);
  load_safetensors(*model, {path});
  EXPECT_TRUE(model->weight.equal(torch::arange(1, 7, torch::kFloat).view({2, 3})));
  EXPECT_TRUE(model->bias.equal(torch::arange(1, 3, torch::kFloat)));
}

TEST_F(PythonTest, AFileOfTheSafetensorsPackageIsRead) {
  const std::string python = python_with_safetensors();
  if (python.empty()) GTEST_SKIP() << "TESSERA_SAFETENSORS_PYTHON: not set";
  const std::string path = directory_.path() + "/theirs.safetensors";
  const std::string script = R"(
import ctypes, sys
from safetensors import TensorSpec, serialize_file
data = ctypes.create_string_buffer(bytes(range(24)), 24)
at = ctypes.addressof(data)
spec = lambda dtype, shape, size: TensorSpec(dtype=dtype, shape=shape, data_ptr=at, data_len=size)
serialize_file({"b": spec("bfloat16", [3], 6), "a": spec("float32", [2, 3], 24),
                "n": spec("int64", [], 8)}, sys.argv[1], {"key": "text"})
)";
  EXPECT_EQ(output_of(python, script, path), "");
  std::string bytes(static_cast<size_t>(files_.entry(path)->bytes), '\0');
  ASSERT_TRUE((*files_.open(path))->read(0, absl::MakeSpan(bytes)).ok());
  const auto size = static_cast<int64_t>(bytes.size());
  const auto json_bytes = SafetensorsHeader::json_bytes(bytes.substr(0, 8), size);
  ASSERT_TRUE(json_bytes.ok()) << json_bytes.status();
  const auto header = SafetensorsHeader::from_json(
      bytes.substr(8, static_cast<size_t>(*json_bytes)), size - 8 - *json_bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata, (std::map<std::string, std::string>{{"key", "text"}}));
  std::map<std::string, std::string> tensors;
  for (const SafetensorsTensor& tensor : header->tensors) {
    tensors[tensor.name] =
        absl::StrCat(std::string(dtype_name(tensor.dtype)), " [", absl::StrJoin(tensor.shape, ", "),
                     "] ", tensor.end - tensor.begin);
  }
  EXPECT_EQ(tensors, (std::map<std::string, std::string>{
                         {"a", "F32 [2, 3] 24"}, {"b", "BF16 [3] 6"}, {"n", "I64 [] 8"}}));
}

}  // namespace
}  // namespace tessera::internal
