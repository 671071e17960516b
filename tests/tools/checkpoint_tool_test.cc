// tessera-checkpoint: what it says of steps, and what it makes of them.
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/files/posix_file_system.h"
#include "tessera/checkpoint/format/safetensors.h"
#include "tessera/tests/checkpoint/small_run.h"
#include "tessera/tests/support/temporary_directory.h"
#include "tessera/tools/checkpoint/command_line.h"
#include "tessera/tools/checkpoint/progress_bar.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing::SmallRun;
using ::testing::StartsWith;

std::string content_of(std::FILE* file) {
  std::string text(static_cast<size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  EXPECT_EQ(std::fread(text.data(), 1, text.size(), file), text.size());
  std::fclose(file);
  return text;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class CheckpointTool : public ::testing::Test {
 protected:
  CheckpointTool() {
    EXPECT_TRUE(two_.save(files_, 10).ok());
    EXPECT_TRUE(two_.save(files_, 20).ok());
    EXPECT_TRUE(files_.make_directory(three_.directory).ok());
    EXPECT_TRUE(three_.save(files_, 20).ok());
  }

  /// The exit code; output is in out_ and err_.
  int run(const std::vector<std::string>& arguments) {
    std::FILE* const out = std::tmpfile();
    std::FILE* const err = std::tmpfile();
    const int code = run_checkpoint_command(files_, arguments, out, err);
    out_ = content_of(out);
    err_ = content_of(err);
    return code;
  }

  testing::TemporaryDirectory directory_;
  PosixFileSystem files_;
  const SmallRun two_{.directory = directory_.path(), .world = 2};
  const SmallRun three_{.directory = directory_.path() + "/other", .world = 3};
  std::string out_;
  std::string err_;
};

TEST_F(CheckpointTool, SaysWhatAStepIsMadeOf) {
  EXPECT_EQ(run({"info", directory_.path()}), 0) << err_;
  EXPECT_THAT(out_, StartsWith(two_.path_of(20) + "\nstep 20, saved by 2 ranks, degrees 1,1,2,"));
  EXPECT_THAT(out_, AllOf(HasSubstr("note   strategy = 'zero1'"), HasSubstr("value  epoch = 2\n"),
                          HasSubstr("tensor model.weight F32[5, 7]\n"),
                          HasSubstr("tensor model.transposed F32[4, 3], not row-major\n"),
                          HasSubstr("tensor engine.steps I64[]\n")));
  EXPECT_EQ(run({"info", two_.path_of(10)}), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("step 10,"));
}

TEST_F(CheckpointTool, FindsDamageInAnyStepOfARun) {
  EXPECT_EQ(run({"verify", directory_.path()}), 0) << err_;
  EXPECT_EQ(out_, two_.path_of(10) + ": whole\n" + two_.path_of(20) + ": whole\n");
  const std::string shard = two_.path_of(10) + "/rank-00001-of-00002.safetensors";
  std::string bytes = bytes_of(shard);
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  EXPECT_EQ(run({"verify", directory_.path()}), 1);
  EXPECT_THAT(out_, AllOf(HasSubstr(two_.path_of(10) + ": DAMAGED: "), HasSubstr(shard),
                          HasSubstr(two_.path_of(20) + ": whole\n")));
  EXPECT_EQ(run({"verify", two_.path_of(20)}), 0);
  EXPECT_EQ(run({"diff", two_.path_of(10), two_.path_of(20)}), 2);
  EXPECT_THAT(err_, HasSubstr(shard));
}

TEST_F(CheckpointTool, ComparesWhateverRanksSaved) {
  EXPECT_EQ(run({"diff", directory_.path(), three_.directory}), 0) << err_;
  EXPECT_EQ(out_, "0 of 6 entries differ\n");
  EXPECT_EQ(run({"diff", two_.path_of(10), three_.directory}), 1) << err_;
  EXPECT_THAT(out_, AllOf(HasSubstr("model.bias: 7 of 7 elements differ, the first is number 0"),
                          HasSubstr("engine.steps: 1 of 1"), HasSubstr("model.weight: "),
                          Not(HasSubstr("model.flag"))));
}

TEST_F(CheckpointTool, ExportsTheModelAsOnePlainFile) {
  const std::string path = directory_.path() + "/model.safetensors";
  EXPECT_EQ(run({"export", three_.directory, path}), 0) << err_;
  const std::string bytes = bytes_of(path);
  const auto json = SafetensorsHeader::json_bytes(bytes, static_cast<int64_t>(bytes.size()));
  ASSERT_TRUE(json.ok()) << json.status();
  const auto begin = static_cast<size_t>(8 + *json);
  const auto header =
      SafetensorsHeader::from_json(std::string_view(bytes).substr(8, static_cast<size_t>(*json)),
                                   static_cast<int64_t>(bytes.size() - begin));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_EQ(header->tensors.size(), 5U);
  for (const SafetensorsTensor& tensor : header->tensors) {
    const EntryForm form = three_.forms().at("model." + tensor.name);
    std::string expected = SmallRun::values("model." + tensor.name, form, 20);
    if (tensor.name == "transposed") {  // [4, 3] with strides [1, 4]
      const std::string memory = expected;
      for (size_t row = 0; row < 4; ++row) {
        for (size_t column = 0; column < 3; ++column) {
          expected.replace((row * 3 + column) * 4, 4, memory, (row + column * 4) * 4, 4);
        }
      }
    }
    EXPECT_EQ(tensor.shape, form.sizes);
    EXPECT_EQ(tensor.dtype, form.dtype);
    const auto length = static_cast<size_t>(tensor.end - tensor.begin);
    EXPECT_EQ(bytes.substr(begin + static_cast<size_t>(tensor.begin), length), expected)
        << tensor.name;
  }
  EXPECT_EQ(run({"export", three_.directory, path}), 2) << "nothing is written over";
  EXPECT_EQ(bytes_of(path), bytes);
}

TEST_F(CheckpointTool, ImportsWhatItExportsAsStep0OfARun) {
  const std::string path = directory_.path() + "/model.safetensors";
  const std::string run_of = directory_.path() + "/imported";
  ASSERT_EQ(run({"export", three_.directory, path}), 0) << err_;
  EXPECT_EQ(run({"import", path, run_of}), 0) << err_;
  EXPECT_EQ(out_, run_of + "/step-0: the model in " + path + "\n");
  EXPECT_EQ(run({"verify", run_of}), 0) << out_ << err_;
  EXPECT_EQ(run({"diff", run_of, three_.directory}), 1) << err_;
  EXPECT_EQ(out_.find("elements differ"), out_.find("7 elements differ")) << out_;
  const std::string again = path + ".again";
  EXPECT_EQ(run({"export", run_of, again}), 0) << err_;
  const std::string index = path + ".index.json";
  std::ofstream(index) << R"({"weight_map": {"weight": "model.safetensors"}})";
  EXPECT_EQ(run({"import", index, run_of + "2"}), 0) << err_;
  EXPECT_EQ(run({"diff", run_of, run_of + "2"}), 0) << out_ << err_;

  EXPECT_EQ(run({"import", path, run_of}), 2);
  EXPECT_THAT(err_, AllOf(HasSubstr(run_of), HasSubstr("up to 0, expected none")));
  std::ofstream(index) << R"({"weight_map": {"a": "model.safetensors",)"
                       << R"( "b": "model.safetensors.again"}})";
  EXPECT_EQ(run({"import", index, run_of + "3"}), 2) << "every tensor is there twice";
  EXPECT_THAT(err_, HasSubstr("model."));
  std::ofstream(path, std::ios::binary) << "no safetensors file";
  EXPECT_EQ(run({"import", path, run_of + "3"}), 2);
  EXPECT_THAT(err_, HasSubstr(path));
  EXPECT_FALSE(*exists(files_, run_of + "3")) << "nothing is made before the file is read";
}

TEST_F(CheckpointTool, RefusesWhatIsNoCommandAndNoStep) {
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_THAT(out_, AllOf(StartsWith("Usage: tessera-checkpoint "), HasSubstr("export PATH FILE")));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{}, {"delete"}, {"info"}, {"diff", "a"}, {"verify", "a", "b"}}) {
    EXPECT_EQ(run(arguments), 64);
    EXPECT_THAT(err_, Not(IsEmpty()));
    EXPECT_EQ(out_, "");
  }
  for (const char* command : {"info", "verify"}) {
    EXPECT_EQ(run({command, directory_.path() + "/none"}), 2);
    EXPECT_THAT(err_, HasSubstr(directory_.path() + "/none"));
  }
  ASSERT_TRUE(files_.make_directory(directory_.path() + "/empty").ok());
  for (const char* command : {"info", "verify"}) {
    EXPECT_EQ(run({command, directory_.path() + "/empty"}), 2);
    EXPECT_THAT(err_, HasSubstr("/empty': got no step and no run with steps, expected"));
  }
}

TEST(ProgressBar, SaysHowMuchIsDoneAndNothingWhereItCannotBeRedrawn) {
  std::FILE* const out = std::tmpfile();
  {
    ProgressBar progress("reading", 4 << 20, out);
    progress.add(3 << 20);
    EXPECT_EQ(progress.line(1 << 20, 80),
              "reading [=======                       ]  25 %  1 of 4 MiB");
    EXPECT_EQ(progress.line(1 << 20, 21), "  ]  25 %  1 of 4 MiB") << "it wraps";
  }
  EXPECT_EQ(content_of(out), "");
}

}  // namespace
}  // namespace tessera::internal
