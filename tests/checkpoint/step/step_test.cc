// Exactly what is saved is read.
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/step_names.h"
#include "tessera/checkpoint/step/shard_writer.h"
#include "tessera/checkpoint/step/step_commit.h"
#include "tessera/checkpoint/step/step_reader.h"
#include "tessera/tests/checkpoint/simulated_file_system.h"
#include "tessera/tests/checkpoint/small_run.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::SimulatedFileSystem;
using testing::SmallRun;
using testing::text_of;

/// A file system with the run's committed step 10.
std::unique_ptr<SimulatedFileSystem> saved(const SmallRun& run, int64_t step = 10) {
  auto files = std::make_unique<SimulatedFileSystem>();
  EXPECT_TRUE(files->make_directory(run.directory).ok());
  const absl::Status status = run.save(*files, step);
  EXPECT_TRUE(status.ok()) << status;
  return files;
}

/// The error of opening a step and reading all of it; "" if there is none.
std::string problem_of(SimulatedFileSystem& files, const SmallRun& run, int64_t step = 10) {
  const auto reader = StepReader::open(files, run.path_of(step));
  if (!reader.ok()) return text_of(reader.status());
  if (absl::Status status = (*reader)->verify_all(); !status.ok()) return text_of(status);
  return testing::wrong_values(**reader, run);
}

TEST(Step, GivesBackWhatWasSavedByAnyNumberOfRanks) {
  for (const int64_t world : {1, 2, 3, 5, 40}) {
    const SmallRun run{.world = world};
    const auto files = saved(run);
    EXPECT_EQ(problem_of(*files, run), "") << world;
  }
}

TEST(Step, ReadsAnyRange) {
  const SmallRun run{.world = 3};
  const auto files = saved(run);
  const auto reader = StepReader::open(*files, run.path_of(10));
  ASSERT_TRUE(reader.ok());
  const EntryForm form = run.forms().at("model.weight");
  const std::string values = SmallRun::values("model.weight", form, 10);
  for (int64_t begin = 0; begin <= 35; ++begin) {
    for (int64_t end = begin; end <= 35; ++end) {
      std::string got(static_cast<size_t>(end - begin) * 4, '\0');
      ASSERT_TRUE((*reader)->read("model.weight", begin, absl::MakeSpan(got)).ok());
      ASSERT_EQ(got, values.substr(static_cast<size_t>(begin) * 4, got.size()));
    }
  }
  std::string got(8, '\0');
  EXPECT_THAT(text_of((*reader)->read("model.weight", 34, absl::MakeSpan(got))),
              HasSubstr("expected whole elements of 0 to 35"));
  EXPECT_THAT(text_of((*reader)->read("model.weight", -1, absl::MakeSpan(got))),
              HasSubstr("expected whole elements"));
  EXPECT_THAT(text_of((*reader)->read("none", 0, absl::MakeSpan(got))),
              HasSubstr("got no entry 'none'"));
}

/// A step of one rank with one entry of 3.5 blocks.
struct LargeStep {
  LargeStep() {
    EXPECT_TRUE(files.make_directory("/run").ok());
    auto layout = ShardLayout::make({run.nonce, 10, 0, 1}, {{"a", form, 0, form.numel()}});
    header_bytes = static_cast<int64_t>(layout->header().size());
    const auto path = begin_step(files, "/run", 10, run.nonce);
    auto writer = ShardWriter::create(files, *path, *std::move(layout));
    // In parts of many lengths.
    const std::string_view bytes = values;
    for (size_t at = 0, part = 4; at < bytes.size(); at += part, part = part * 3 % 3000004) {
      EXPECT_TRUE((*writer)->add("a", static_cast<int64_t>(at / 4), bytes.substr(at, part)).ok());
    }
    auto summary = (*writer)->finish();
    EXPECT_TRUE(summary.ok()) << summary.status();
    const auto manifest = make_manifest(run.head(10), {*std::move(summary)});
    EXPECT_TRUE(manifest.ok()) << manifest.status();
    EXPECT_TRUE(commit_step(files, "/run", *manifest).ok());
  }

  const SmallRun run{.world = 1};
  const EntryForm form{{7, 131072}, {131072, 1}, at::kFloat};
  const std::string values = SmallRun::values("a", form, 10);
  int64_t header_bytes = 0;
  SimulatedFileSystem files;
};

TEST(Step, VerifiesTheBlocksThatItReadsAndNoOthers) {
  LargeStep step;
  const std::string file = step.run.path_of(10) + "/rank-00000-of-00001.safetensors";
  const auto reader = StepReader::open(step.files, step.run.path_of(10));
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::string all(step.values.size(), '\0');
  ASSERT_TRUE((*reader)->read("a", 0, absl::MakeSpan(all)).ok());
  EXPECT_TRUE(all == step.values);
  int64_t verified = 0;
  EXPECT_TRUE((*reader)->verify_all([&](int64_t bytes) { verified += bytes; }).ok());
  EXPECT_EQ(verified, step.files.entry(file)->bytes);

  step.files.content(file)[2 * (1 << 20) + 5] ^= 1;
  const auto first_of_block = [&](int64_t block) {
    return (block * kBlockBytes - step.header_bytes) / 4;
  };
  std::string part(4 * 1000, '\0');
  for (const int64_t begin : {int64_t{0}, first_of_block(1), first_of_block(2) - 1000,
                              first_of_block(3), step.form.numel() - 1000}) {
    EXPECT_TRUE((*reader)->read("a", begin, absl::MakeSpan(part)).ok()) << begin;
  }
  for (const int64_t begin :
       {first_of_block(2) - 999, first_of_block(2) + 5000, first_of_block(3) - 1}) {
    const absl::Status status = (*reader)->read("a", begin, absl::MakeSpan(part));
    EXPECT_TRUE(absl::IsDataLoss(status)) << begin;
    EXPECT_THAT(text_of(status),
                AllOf(HasSubstr(file), HasSubstr("block 2"), HasSubstr("use another step")));
  }
  EXPECT_TRUE(absl::IsDataLoss((*reader)->read("a", 0, absl::MakeSpan(all))));
  EXPECT_TRUE(absl::IsDataLoss((*reader)->verify_all()));
}

TEST(Step, Case52_NoticesTruncation) {
  const SmallRun run;
  const auto files = saved(run);
  for (const auto& [path, content] : files->files_below(run.path_of(10))) {
    const size_t size = content.size();
    for (const size_t length : {size_t{0}, size_t{1}, size_t{8}, size_t{40}, size / 2, size - 1}) {
      files->content(path) = content.substr(0, length);
      EXPECT_THAT(problem_of(*files, run), HasSubstr(path)) << length;
    }
    files->content(path) = content + "x";
    EXPECT_THAT(problem_of(*files, run), HasSubstr(path)) << "one byte more";
    files->content(path) = content;
  }
  EXPECT_EQ(problem_of(*files, run), "");
}

TEST(Step, Case53_NoticesEveryBit) {
  const SmallRun run;
  const auto files = saved(run);
  for (const auto& [path, content] : files->files_below(run.path_of(10))) {
    std::string& now = files->content(path);
    for (size_t bit = 0; bit < content.size() * 8; ++bit) {
      now[bit / 8] = static_cast<char>(now[bit / 8] ^ (1 << bit % 8));
      ASSERT_THAT(problem_of(*files, run), HasSubstr(path)) << bit;
      now[bit / 8] = content[bit / 8];
    }
  }
}

TEST(Step, IgnoresAndNamesFilesThatItsManifestDoesNot) {
  const SmallRun run;
  const auto files = saved(run);
  for (const char* name : {"eval.json", ".nfs01", "a\nb"}) {
    files->put_file(run.path_of(10) + "/" + name, "x");
  }
  EXPECT_EQ(problem_of(*files, run), "");
  const auto reader = StepReader::open(*files, run.path_of(10));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ((*reader)->strays_text(), "'.nfs01', 'a\\nb', 'eval.json'");
}

TEST(Step, Case54_NoticesMissingAndForeignFiles) {
  const SmallRun run;
  const SmallRun later{.nonce = "fedcba9876543210fedcba9876543210"};
  const auto files = saved(run);
  ASSERT_TRUE(later.save(*files, 20).ok());
  const std::string mine = run.path_of(10) + "/rank-00001-of-00002.safetensors";
  const std::string theirs = run.path_of(20) + "/rank-00001-of-00002.safetensors";
  const auto expect = [&](const std::function<void(SimulatedFileSystem&)>& damage,
                          const std::string& path, const std::string& problem) {
    const auto copy = files->copy();
    ASSERT_EQ(problem_of(*copy, run), "");
    damage(*copy);
    EXPECT_THAT(problem_of(*copy, run), AllOf(HasSubstr(path), HasSubstr(problem)));
  };
  expect([&](auto& disk) { disk.erase(mine); }, mine, "got no such file");
  expect([&](auto& disk) { disk.erase(run.path_of(10) + "/manifest.json"); }, "manifest.json",
         "No such file");
  expect([&](auto& disk) { disk.put_link(mine); }, mine, "got a symbolic link, expected a file");
  expect([&](auto& disk) { disk.swap(mine, theirs); }, mine, "checksum of block 0");
  expect(
      [&](auto& disk) {
        disk.swap(run.path_of(10) + "/manifest.json", run.path_of(20) + "/manifest.json");
      },
      "manifest.json", "got the manifest of step 20 in 'step-10'");
  expect(
      [&](auto& disk) {
        disk.erase(run.path_of(10));
        ASSERT_TRUE(disk.rename(run.path_of(20), run.path_of(10)).ok());
      },
      "manifest.json", "got the manifest of step 20 in 'step-10'");
}

/// Makes step 10's manifest match rank 1's current file, as a deceiver would.
void vouch(SimulatedFileSystem& files, const SmallRun& run) {
  std::string& text = files.content(run.path_of(10) + "/manifest.json");
  auto manifest = Manifest::from_text(text);
  const std::string& file = files.content(run.path_of(10) + "/rank-00001-of-00002.safetensors");
  manifest->files[1].bytes = static_cast<int64_t>(file.size());
  manifest->files[1].checksums = {checksum_of(file)};
  text = *manifest->to_text();
}

TEST(Step, NoticesAFileOfAnotherSaveThatTheManifestVouchesFor) {
  const SmallRun run;
  const SmallRun later{.nonce = "fedcba9876543210fedcba9876543210"};
  const auto files = saved(run);
  ASSERT_TRUE(later.save(*files, 20).ok());
  const std::string mine = run.path_of(10) + "/rank-00001-of-00002.safetensors";
  const std::string theirs = run.path_of(20) + "/rank-00001-of-00002.safetensors";
  vouch(*files, run);
  ASSERT_EQ(problem_of(*files, run), "");
  const std::string content = files->content(mine);

  files->content(mine) = files->content(theirs);
  vouch(*files, run);
  EXPECT_THAT(problem_of(*files, run), HasSubstr("belongs to another save"));

  files->content(mine) = absl::StrReplaceAll(content, {{"model.weight#", "model.height#"}});
  vouch(*files, run);
  EXPECT_THAT(problem_of(*files, run), HasSubstr("got no tensor 'model.weight#17-35'"));

  files->content(mine) = absl::StrReplaceAll(content, {{"\"F32\"", "\"I32\""}});
  vouch(*files, run);
  EXPECT_THAT(problem_of(*files, run), HasSubstr("got another dtype, shape or place"));

  // An absurd header size with matching checksums.
  files->content(mine) = content;
  files->content(mine).replace(0, 8, "\xff\xff\xff\xff\xff\xff\xff\x7f");
  vouch(*files, run);
  EXPECT_THAT(problem_of(*files, run), HasSubstr("got a header of 9223372036854775807 bytes"));
}

TEST(Step, SaysThatAReaderIsTooOld) {
  const SmallRun run;
  const auto files = saved(run);
  std::string& text = files->content(run.path_of(10) + "/manifest.json");
  text = absl::StrReplaceAll(text, {{"\"version\":1,", "\"version\":7,"}});
  const auto reader = StepReader::open(*files, run.path_of(10));
  EXPECT_TRUE(absl::IsUnimplemented(reader.status()));
  EXPECT_THAT(text_of(reader.status()), AllOf(HasSubstr("manifest.json"), HasSubstr("version 7")));
}

TEST(Step, IsNotCommittedWithoutEveryElementOnce) {
  const SmallRun run{.world = 3};
  SimulatedFileSystem files;
  ASSERT_TRUE(files.make_directory(run.directory).ok());
  const auto path = begin_step(files, run.directory, 10, run.nonce);
  std::vector<ShardSummary> all;
  for (int64_t rank = 0; rank < 3; ++rank) {
    auto summary = run.write_rank(files, *path, 10, rank);
    ASSERT_TRUE(summary.ok()) << summary.status();
    // As received from another rank.
    const auto sent = ShardSummary::from_text(*summary->to_text());
    ASSERT_TRUE(sent.ok()) << sent.status();
    EXPECT_EQ(*sent, *summary);
    all.push_back(*sent);
  }
  ASSERT_TRUE(make_manifest(run.head(10), {all[2], all[0], all[1]}).ok()) << "in any order";
  const auto refusal = [&](const std::function<void(std::vector<ShardSummary>&)>& change) {
    std::vector<ShardSummary> changed = all;
    change(changed);
    return text_of(make_manifest(run.head(10), changed).status());
  };
  EXPECT_THAT(refusal([](auto& some) { some.pop_back(); }), HasSubstr("got 2 files"));
  EXPECT_THAT(refusal([](auto& some) { some.erase(some.begin()); }),
              HasSubstr("got a summary of rank 1, expected one of rank 0"));
  EXPECT_THAT(refusal([](auto& some) { some[1].nonce[0] = 'f'; }), HasSubstr("one of this save"));
  EXPECT_THAT(refusal([](auto& some) { some[1].step = 9; }), HasSubstr("got a file of step 9"));
  EXPECT_THAT(refusal([](auto& some) { some[1].entries.erase("model.weight"); }),
              HasSubstr("entry 'model.weight': got a piece of elements 23 to 35 after element 11"));
  EXPECT_THAT(
      refusal([](auto& some) { some[1].entries["model.bias"] = some[0].entries["model.bias"]; }),
      HasSubstr("entry 'model.bias'"));
  EXPECT_THAT(refusal([](auto& some) { some[1].entries["model.weight"].form.sizes = {35}; }),
              HasSubstr("got other sizes"));
}

TEST(Step, ThatExistsIsNotWrittenInto) {
  const SmallRun run;
  const auto files = saved(run);
  const auto before = files->files_below(run.directory);
  const absl::Status status = run.save(*files, 10);
  EXPECT_TRUE(absl::IsAlreadyExists(status)) << status;
  EXPECT_THAT(text_of(status), HasSubstr("'/run/step-10': got a step that exists"));
  // A step that appears between begin and commit.
  SimulatedFileSystem other;
  ASSERT_TRUE(other.make_directory(run.directory).ok());
  const SmallRun second{.nonce = "fedcba9876543210fedcba9876543210"};
  const auto path = begin_step(other, run.directory, 10, second.nonce);
  std::vector<ShardSummary> summaries;
  for (int64_t rank = 0; rank < 2; ++rank) {
    summaries.push_back(*second.write_rank(other, *path, 10, rank));
  }
  ASSERT_TRUE(run.save(other, 10).ok());
  const auto manifest = make_manifest(second.head(10), summaries);
  EXPECT_TRUE(absl::IsAlreadyExists(commit_step(other, run.directory, *manifest)));
  EXPECT_EQ(other.files_below(run.directory), before);
}

TEST(Step, NeedsADirectoryThatRanksShare) {
  const SmallRun run;
  SimulatedFileSystem files;
  ASSERT_TRUE(files.make_directory(run.directory).ok());
  const auto path = begin_step(files, run.directory, 10, run.nonce);
  std::vector<ShardSummary> summaries{*run.write_rank(files, *path, 10, 0),
                                      *run.write_rank(files, *path, 10, 1)};
  files.erase(*path + "/rank-00001-of-00002.safetensors");
  const absl::Status elsewhere =
      commit_step(files, run.directory, *make_manifest(run.head(10), summaries));
  EXPECT_THAT(text_of(elsewhere), HasSubstr("save to a directory that all ranks share"));
  EXPECT_TRUE(files.files_below(run.directory).empty()) << "the rest is removed";
}

TEST(ShardWriter, TakesPiecesInTheLayoutsOrderAlone) {
  SimulatedFileSystem files;
  ASSERT_TRUE(files.make_directory("/d").ok());
  const EntryForm narrow{{4}, {1}, at::kHalf}, wide{{3}, {1}, at::kDouble},
      empty{{0}, {1}, at::kInt};
  int64_t rank = 0;
  const auto writer = [&] {
    auto layout = ShardLayout::make({"0123456789abcdef0123456789abcdef", 1, rank++, 9},
                                    {{"n", narrow, 1, 3}, {"e", empty, 0, 0}, {"w", wide, 0, 3}});
    EXPECT_EQ(layout->pieces()[0].entry, "w") << "the widest first";
    return *ShardWriter::create(files, "/d", *std::move(layout));
  };
  const std::string bytes(24, 'x');
  const std::string_view some = bytes;
  auto good = writer();
  EXPECT_TRUE(good->add("w", 0, some.substr(0, 8)).ok());
  EXPECT_TRUE(good->add("w", 1, some.substr(0, 16)).ok());
  EXPECT_TRUE(good->add("n", 1, some.substr(0, 4)).ok());
  EXPECT_TRUE(good->finish().ok());
  EXPECT_FALSE(good->finish().ok());

  const auto refusal = [&](const std::string& entry, int64_t begin, size_t size) {
    const auto bad = writer();
    const absl::Status status = bad->add(entry, begin, some.substr(0, size));
    EXPECT_EQ(bad->add("w", 0, some), status) << "an error stays";
    EXPECT_EQ(bad->finish().status(), status);
    return text_of(status);
  };
  EXPECT_THAT(refusal("n", 1, 4), HasSubstr("expected whole elements of 'w' from 0 on"));
  EXPECT_THAT(refusal("w", 1, 8), HasSubstr("from 0 on"));
  EXPECT_THAT(refusal("w", 0, 9), HasSubstr("whole elements"));
  const auto unfinished = writer();
  EXPECT_TRUE(unfinished->add("w", 0, some).ok());
  EXPECT_THAT(text_of(unfinished->finish().status()),
              HasSubstr("got no values of 'n' from element 1 on"));
}

TEST(ShardLayout, RefusesWhatCannotBeWritten) {
  const EntryForm form{{4}, {1}, at::kFloat};
  const auto refusal = [](std::vector<ShardPiece> pieces) {
    return text_of(ShardLayout::make({}, std::move(pieces)).status());
  };
  EXPECT_THAT(refusal({{"a", form, 2, 2}}), HasSubstr("entry 'a': got elements 2 to 2"));
  EXPECT_THAT(refusal({{"a", form, 2, 5}}), HasSubstr("expected one or more of 0 to 4"));
  EXPECT_THAT(refusal({{"a", form, -1, 2}}), HasSubstr("expected one or more"));
  EXPECT_THAT(refusal({{"a#0-1", form, 0, 4}}), HasSubstr("got the name 'a#0-1'"));
  EXPECT_THAT(refusal({{"a", form, 0, 2}, {"a", form, 0, 2}}),
              HasSubstr("a second tensor 'a#0-2'"));
  EXPECT_THAT(refusal({{"a", form, 0, 2}, {"a", {{4}, {1}, at::kHalf}, 2, 4}}),
              HasSubstr("two pieces of different sizes"));
  EXPECT_EQ(refusal({{"a", form, 0, 2}, {"a", form, 2, 4}}), "");
}

}  // namespace
}  // namespace tessera::internal
