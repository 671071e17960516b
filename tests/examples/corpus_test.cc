#include "tessera/examples/gpt/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tessera/tests/support/temporary_directory.h"

namespace gpt {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kNoLimit = int64_t{1} << 40;

class CorpusFolder : public tessera::internal::testing::TemporaryDirectory {
 public:
  std::string write(const std::string& name, const std::string& text) const {
    const fs::path file = fs::path(path()) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << text;
    return file.string();
  }
};

std::string text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::string whole(const Corpus& corpus) {  // for texts of less than ten blocks
  return text_of(corpus.training()) + text_of(corpus.held_out());
}

TEST(Corpus, ReadsOneFile) {
  const CorpusFolder folder;
  const auto corpus = Corpus::read(folder.write("a.txt", "0123456789"), kNoLimit);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(text_of(corpus->training()), "012345678");
  EXPECT_EQ(text_of(corpus->held_out()), "9");
  EXPECT_EQ(corpus->files(), 1);
}

TEST(Corpus, ReadsAFolderInOrderOfPathsAndLeavesOutWhatIsNoText) {
  const CorpusFolder folder;
  folder.write("b/z.txt", "second ");
  folder.write("a.txt", "first ");
  folder.write("c.bin", std::string("no\0text", 7));
  folder.write("c.txt", "third");
  fs::create_symlink("nowhere", fs::path(folder.path()) / "dangling");
  const auto corpus = Corpus::read(folder.path(), kNoLimit);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(whole(*corpus), "first second third");
  EXPECT_EQ(corpus->files(), 3);
}

TEST(Corpus, StopsAtTheLimit) {
  const CorpusFolder folder;
  folder.write("a.txt", "aaaa");
  folder.write("b.txt", "bbbb");
  folder.write("c.txt", "cccc");
  const auto corpus = Corpus::read(folder.path(), 6);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(whole(*corpus), "aaaabb");
  EXPECT_EQ(corpus->files(), 2);
}

TEST(Corpus, HoldsOutEveryTenthBlock) {
  const size_t block = 64 << 10;
  std::string text;
  for (int i = 0; i < 21; ++i) text += std::string(block, static_cast<char>('a' + i));
  const Corpus corpus = Corpus::from_text(text);
  EXPECT_EQ(text_of(corpus.held_out()), std::string(block, 'a' + 9) + std::string(block, 'a' + 19));
  EXPECT_EQ(corpus.training().numel(), static_cast<int64_t>(19 * block));
  // No byte occurs in both.
  EXPECT_EQ(text_of(corpus.training()).find_first_of("jt"), std::string::npos);
}

TEST(Corpus, EntropyOfAUniformTextIsTheLogarithm) {
  EXPECT_NEAR(Corpus::from_text("abcdabcdabcdabcd").unigram_entropy(), std::log(4.0), 1e-12);
  EXPECT_NEAR(Corpus::from_text("aaaaaaaaaaaa").unigram_entropy(), 0.0, 1e-12);
  EXPECT_GT(Corpus::from_text("abcdabcdabcdabce").unigram_entropy(), std::log(4.0));
}

TEST(Corpus, NamesAPathThatIsNotThere) {
  const auto corpus = Corpus::read("/no/such/text", kNoLimit);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(corpus.status().message()),
              HasSubstr("[gpt] --data: got '/no/such/text' (No such file or directory), expected a "
                        "text file or a directory"));
}

TEST(Corpus, NamesAPathThatIsNeitherFileNorFolder) {
  const auto corpus = Corpus::read("/dev/null", kNoLimit);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(corpus.status().message()),
              HasSubstr("'/dev/null', which is neither a file nor a directory"));
}

TEST(Corpus, ListsUnreadableFiles) {
  // Nobody can read this file, not even root: nothing is mapped at address 0.
  const auto corpus = Corpus::read("/proc/self/mem", kNoLimit);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(corpus.status().message()),
              HasSubstr("got unreadable files, expected readable ones; change their permissions or "
                        "give another path:\n  /proc/self/mem: Input/output error"));
}

TEST(Corpus, NamesTenUnreadableFiles) {
  const CorpusFolder folder;
  for (int i = 0; i < 13; ++i) {
    fs::create_symlink("/proc/self/mem", absl::StrCat(folder.path(), "/", i));
  }
  const auto corpus = Corpus::read(folder.path(), kNoLimit);
  ASSERT_FALSE(corpus.ok());
  const std::string message(corpus.status().message());
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 11) << message;
  EXPECT_THAT(message, ::testing::EndsWith("\n  and 3 more"));
}

TEST(Corpus, RefusesAFolderWithoutText) {
  const CorpusFolder folder;
  folder.write("a.bin", std::string(3, '\0'));
  const auto corpus = Corpus::read(folder.path(), kNoLimit);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(corpus.status().message()), HasSubstr("without any text in it"));
}

TEST(Corpus, SaysHowMuchTextIsMissing) {
  const Corpus corpus = Corpus::from_text(std::string(100, 'a'));
  EXPECT_TRUE(corpus.check_size(/*context=*/8, /*sequences=*/4).ok());
  EXPECT_THAT(std::string(corpus.check_size(16, 4).message()),
              HasSubstr("[gpt] --data: got 100 bytes of text, expected about 170 or more for one "
                        "step of 4 sequences of context 16"));
  EXPECT_FALSE(corpus.check_size(8, 12).ok());
}

}  // namespace
}  // namespace gpt
