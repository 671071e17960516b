#include "tessera/checkpoint/format/manifest.h"

#include <cmath>
#include <limits>
#include <string>

#include <absl/strings/str_replace.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/format/block_checksums.h"
#include "tessera/checkpoint/format/step_names.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;

Manifest two_ranks() {
  return {
      .nonce = "0123456789abcdef0123456789abcdef",
      .step = 30,
      .world = 2,
      .degrees = {1, 1, 2},
      .options = {{"strategy", "zero1"}},
      .extras = {{"a", int64_t{-5}}, {"b", 0.1}, {"c", "text"}, {"d", 3.0}},
      .files = {{"rank-00000-of-00002.safetensors", 100, {1}},
                {"rank-00001-of-00002.safetensors", (1 << 20) + 84, {UINT64_MAX, 3}}},
      .entries = {{"number", {{{}, {}, at::kLong}, {{0, 1, 0, 72}}}},
                  {"empty", {{{0}, {1}, at::kFloat}, {}}},
                  {"split", {{{262154}, {1}, at::kFloat}, {{0, 5, 0, 80}, {5, 262154, 1, 64}}}}}};
}

/// `text` with its trailer replaced by a correct checksum.
std::string sealed(std::string text) {
  text.resize(text.size() - Manifest::trailer("").size());
  return text + Manifest::trailer(text);
}

std::string refusal(const std::string& text) {
  const auto manifest = Manifest::from_text(text);
  return manifest.ok() ? "understood" : std::string(manifest.status().message());
}

TEST(Manifest, ReadsWhatItWrites) {
  const Manifest manifest = two_ranks();
  EXPECT_EQ(manifest.problem(), "");
  const auto text = manifest.to_text();
  ASSERT_TRUE(text.ok()) << text.status();
  const auto again = Manifest::from_text(*text);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, manifest);
  EXPECT_EQ(*again->to_text(), *text);
}

TEST(Manifest, KeepsNumbersThatJsonDoesNotHave) {
  Manifest manifest = two_ranks();
  manifest.extras = {{"nan", std::nan("")},
                     {"inf", std::numeric_limits<double>::infinity()},
                     {"minus", -std::numeric_limits<double>::infinity()},
                     {"zero", -0.0},
                     {"least", std::numeric_limits<double>::denorm_min()},
                     {"integer", INT64_MIN}};
  const auto again = Manifest::from_text(*manifest.to_text());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(std::isnan(std::get<double>(again->extras.at("nan"))));
  EXPECT_TRUE(std::signbit(std::get<double>(again->extras.at("zero"))));
  manifest.extras.erase("nan");
  for (const auto& [name, extra] : manifest.extras) EXPECT_EQ(again->extras.at(name), extra);
}

TEST(Manifest, NoticesEveryChangedBit) {
  const std::string text = *two_ranks().to_text();
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    std::string changed = text;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    ASSERT_NE(refusal(changed), "understood") << bit;
  }
  for (size_t size = 0; size < text.size(); ++size) {
    ASSERT_NE(refusal(text.substr(0, size)), "understood") << size;
  }
  EXPECT_NE(refusal(text + " "), "understood");
}

TEST(Manifest, Case62_SaysWhichVersionReadsIt) {
  const std::string text = *two_ranks().to_text();
  const auto with_version = [&](const std::string& version) {
    return absl::StrReplaceAll(text, {{"\"version\":1,", "\"version\":" + version + ","}});
  };
  EXPECT_TRUE(absl::IsUnimplemented(Manifest::from_text(with_version("2")).status()));
  EXPECT_THAT(refusal(with_version("2")), HasSubstr("a newer Tessera wrote it"));
  EXPECT_THAT(refusal(with_version("0")), HasSubstr("an older Tessera wrote it"));
  EXPECT_THAT(refusal(with_version("1.0")), HasSubstr("got '1.0' as the format's version"));
  EXPECT_THAT(refusal("PK\x03\x04"), HasSubstr("begins with 'PK\\x03\\x04'"));
  EXPECT_THAT(refusal(""), HasSubstr("expected the manifest of a checkpoint"));
}

TEST(Manifest, RefusesWellSealedNonsense) {
  const std::string text = *two_ranks().to_text();
  ASSERT_EQ(refusal(sealed(text)), "understood");
  const auto refusal_with = [&](const std::string& from, const std::string& to) {
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(changed, text) << from;
    return refusal(sealed(changed));
  };
  EXPECT_THAT(refusal_with("rank-00000-of", "../../00000-of"),
              HasSubstr("got file '../../00000-of-00002.safetensors', expected 'rank-00000"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,4,0,80]"), HasSubstr("element 4 is there not at all"));
  EXPECT_THAT(refusal_with("[5,262154,1,64]", "[4,262154,1,64]"),
              HasSubstr("element 4 is there twice"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,5,2,80]"), HasSubstr("got file 2 of 2"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,5,0,9223372036854775807]"),
              HasSubstr("expected them within it"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,5,0,78]"), HasSubstr("at a multiple of 4"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,5,0,76]"), HasSubstr("got elements at byte 76"));
  EXPECT_THAT(refusal_with("[0,5,0,80]", "[0,5,0]"), HasSubstr("expected [begin, end, file"));
  EXPECT_THAT(refusal_with("[262154]", "[4294967296,4294967296]"), HasSubstr("2^63 bytes"));
  EXPECT_THAT(refusal_with("[262154]", "[262153]"), HasSubstr("expected every element once"));
  EXPECT_THAT(refusal_with("\"bytes\":100", "\"bytes\":9000000000000000000"),
              HasSubstr("checksums of 1 blocks"));
  EXPECT_THAT(refusal_with("\"world\":2", "\"world\":1000000000"), HasSubstr("got a world of"));
  EXPECT_THAT(refusal_with("\"world\":2", "\"world\":3"), HasSubstr("got 2 files"));
  EXPECT_THAT(refusal_with("\"step\":30", "\"step\":-1"), HasSubstr("expected 0 to"));
  EXPECT_THAT(refusal_with("\"step\":30", "\"stop\":30"), HasSubstr("got no field 'step'"));
  EXPECT_THAT(refusal_with("\"step\":30", "\"step\":30,\"more\":1"), HasSubstr("fields, expected"));
  EXPECT_THAT(refusal_with("\"step\":30", "\"step\":30,\"step\":30"), HasSubstr("'step' twice"));
  EXPECT_THAT(refusal_with("\"number\"", "\"split#0-3\""), HasSubstr("the name 'split#0-3'"));
  EXPECT_THAT(refusal_with("\"I64\"", "\"I63\""), HasSubstr("got dtype 'I63'"));
  EXPECT_THAT(refusal_with("\"zero1\"", "[[[[[[1]]]]]]"), HasSubstr("nested deeper than 5"));
}

TEST(Manifest, IsNotWrittenWithoutEveryElementOnce) {
  Manifest twice = two_ranks();
  twice.entries.at("split").pieces[1].begin = 4;
  EXPECT_THAT(std::string(twice.to_text().status().message()),
              HasSubstr("entry 'split': got a piece of elements 4 to 262154 after element 5"));
  Manifest missing = two_ranks();
  missing.entries.at("split").pieces.pop_back();
  EXPECT_THAT(missing.problem(), HasSubstr("expected all 262154; the rest is in no file"));
}

TEST(Checksums, AreReadBackToTheLetter) {
  const std::vector<uint64_t> checksums{0, 1, UINT64_MAX, 0x0123456789abcdef};
  const std::string text = pack_checksums(checksums);
  EXPECT_EQ(unpack_checksums(text), checksums);
  EXPECT_EQ(unpack_checksums(""), std::vector<uint64_t>());
  for (const std::string& wrong : {text + "A", text.substr(1), " " + text, text + "\n",
                                   std::string("AAAAAAAAAAA"), std::string("AAAAAAAAAAB=")}) {
    EXPECT_FALSE(unpack_checksums(wrong).has_value()) << wrong;
  }
  // XXH3-64 of "" and of "a", for authors of readers to compare with.
  EXPECT_EQ(checksum_of(""), 0x2d06800538d394c2U);
  EXPECT_EQ(checksum_of("a"), 0xe6c632b61e964e1fU);
  EXPECT_EQ(blocks_of(0), 0);
  EXPECT_EQ(blocks_of(kBlockBytes), 1);
  EXPECT_EQ(blocks_of(kBlockBytes + 1), 2);
}

TEST(StepNames, AreReadToTheLetter) {
  EXPECT_EQ(step_of("step-0"), 0);
  EXPECT_EQ(step_of("step-9223372036854775807"), INT64_MAX);
  for (const char* const name : {"step-", "step-01", "step--1", "step-+1", "step- 1", "step-1 ",
                                 "step-9223372036854775808", "Step-1", "step-1.tmp-", "1"}) {
    EXPECT_FALSE(step_of(name).has_value()) << name;
  }
  const std::string nonce = draw_nonce();
  EXPECT_TRUE(is_nonce(nonce));
  EXPECT_NE(nonce, draw_nonce());
  EXPECT_EQ(step_mark_of(marked_step_name(7, kTemporary, nonce)), "tmp");
  EXPECT_EQ(step_mark_of(marked_step_name(7, kTrash, nonce)), "trash");
  EXPECT_EQ(step_mark_of("step-7"), "");
  for (const std::string& name :
       {std::string("step-7.tmp-mine"), std::string("step-7."), std::string("step-7.tmp"),
        std::string("step-07.tmp-") + nonce, std::string("notes.tmp-") + nonce, std::string("")}) {
    EXPECT_EQ(step_mark_of(name), std::nullopt) << name;
  }
  EXPECT_EQ(rank_file_name(3, 4), "rank-00003-of-00004.safetensors");
}

}  // namespace
}  // namespace tessera::internal
