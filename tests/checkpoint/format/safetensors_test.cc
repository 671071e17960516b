#include "tessera/checkpoint/format/safetensors.h"

#include <cstring>
#include <string>

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/checkpoint/format/entry_form.h"
#include "tessera/checkpoint/format/json.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;

std::string length_bytes(uint64_t length) {
  std::string bytes(8, '\0');
  std::memcpy(bytes.data(), &length, 8);
  return bytes;
}

std::string refusal(const std::string& json, int64_t data_bytes) {
  const auto header = SafetensorsHeader::from_json(json, data_bytes);
  return header.ok() ? "understood" : std::string(header.status().message());
}

std::string tensor(const std::string& name, const std::string& shape, int64_t begin, int64_t end,
                   const std::string& dtype = "U8") {
  return absl::StrCat("\"", name, "\":{\"dtype\":\"", dtype, "\",\"shape\":[", shape,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
}

TEST(Safetensors, ReadsWhatItWrites) {
  const SafetensorsHeader header{.metadata = {{"a", "b"}, {"c", ""}},
                                 .tensors = {{"wide", at::kDouble, {2, 3}, 0, 48},
                                             {"number", at::kLong, {}, 48, 56},
                                             {"empty", at::kFloat, {0, 4}, 56, 56},
                                             {"ü#0-3", at::kBFloat16, {3}, 56, 62}}};
  const auto bytes = header.to_bytes();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->size() % SafetensorsHeader::kAlignment, 0U);
  const auto file_bytes = static_cast<int64_t>(bytes->size()) + 62;
  const auto json_bytes = SafetensorsHeader::json_bytes(bytes->substr(0, 8), file_bytes);
  ASSERT_TRUE(json_bytes.ok()) << json_bytes.status();
  EXPECT_EQ(*json_bytes + 8, static_cast<int64_t>(bytes->size()));
  const auto again = SafetensorsHeader::from_json(bytes->substr(8), 62);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->metadata, header.metadata);
  EXPECT_EQ(again->tensors, header.tensors);
}

TEST(Safetensors, ReadsAFileOfTheRustLoadersTests) {
  const std::string json = R"({"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}})";
  const auto header = SafetensorsHeader::from_json(json, 16);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors, (std::vector<SafetensorsTensor>{{"test", at::kInt, {2, 2}, 0, 16}}));
  EXPECT_TRUE(SafetensorsHeader::from_json("{}", 0).ok());
}

TEST(Safetensors, Case63_RefusesLengthsThatCannotBe) {
  const auto refusal_of = [](uint64_t length, int64_t file_bytes) {
    const auto bytes = SafetensorsHeader::json_bytes(length_bytes(length), file_bytes);
    return bytes.ok() ? "understood" : std::string(bytes.status().message());
  };
  EXPECT_EQ(refusal_of(92, 100), "understood");
  EXPECT_THAT(refusal_of(93, 100), HasSubstr("got a header of 93 bytes in a file of 100"));
  EXPECT_THAT(refusal_of(uint64_t{1} << 63, 1 << 20),
              HasSubstr("got a header of 9223372036854775808"));
  EXPECT_THAT(refusal_of(UINT64_MAX, 1 << 20), HasSubstr("expected at most 100000000"));
  EXPECT_THAT(refusal_of(100'000'001, INT64_MAX), HasSubstr("expected at most 100000000"));
  EXPECT_THAT(refusal_of(__builtin_bswap64(40), 100), HasSubstr("big-endian"));
  for (const size_t size : {0, 1, 7}) {
    const auto bytes =
        SafetensorsHeader::json_bytes(std::string(size, '\0'), static_cast<int64_t>(size));
    EXPECT_THAT(std::string(bytes.status().message()), HasSubstr("it was truncated"));
  }
}

TEST(Safetensors, RefusesTensorsThatDoNotCoverTheData) {
  const auto both = [](const std::string& a, const std::string& b) {
    return absl::StrCat("{", a, ",", b, "}");
  };
  EXPECT_EQ(refusal(both(tensor("b", "4", 4, 8), tensor("a", "4", 0, 4)), 8), "understood");
  EXPECT_THAT(refusal(both(tensor("a", "4", 0, 4), tensor("b", "4", 2, 6)), 6),
              HasSubstr("tensor 'b': got data_offsets 2 to 6, expected them to begin at 4"));
  EXPECT_THAT(refusal(both(tensor("a", "4", 0, 4), tensor("b", "4", 5, 9)), 9),
              HasSubstr("expected them to begin at 4"));
  EXPECT_THAT(refusal("{" + tensor("a", "4", 0, 5) + "}", 5), HasSubstr("got 5 bytes of data"));
  EXPECT_THAT(refusal("{" + tensor("a", "4", 4, 0) + "}", 4), HasSubstr("got data_offsets 4 to 0"));
  EXPECT_THAT(refusal("{" + tensor("a", "4", 0, 4) + "}", 3), HasSubstr("got 3 bytes of data"));
  EXPECT_THAT(refusal("{" + tensor("a", "4", 0, 4) + "}", 5), HasSubstr("got 5 bytes of data"));
}

TEST(Safetensors, RefusesSizesThatOverflow) {
  const std::string huge = "4294967296,4294967296";
  EXPECT_THAT(refusal("{" + tensor("a", huge, 0, 0) + "}", 0), HasSubstr("fewer than 2^63 bytes"));
  EXPECT_THAT(refusal("{" + tensor("a", huge + ",0", 0, 0) + "}", 0),
              HasSubstr("fewer than 2^63 bytes"));
  EXPECT_THAT(refusal("{" + tensor("a", "9223372036854775808", 0, 0) + "}", 0),
              HasSubstr("expected integers from 0"));
  EXPECT_THAT(refusal("{" + tensor("a", "-1", 0, 0) + "}", 0), HasSubstr("expected integers"));
  EXPECT_THAT(refusal("{" + tensor("a", "1.0", 0, 1) + "}", 1), HasSubstr("expected integers"));
}

TEST(Safetensors, RefusesWhatTheFormatDoesNotHave) {
  const std::string good = tensor("a", "4", 0, 4);
  EXPECT_EQ(refusal("{" + good + "}  ", 4), "understood");
  EXPECT_THAT(refusal("{" + good + "," + good + "}", 4), HasSubstr("the name 'a' twice"));
  EXPECT_THAT(refusal(" {" + good + "}", 4), HasSubstr("expected '{'"));
  EXPECT_THAT(refusal("", 0), HasSubstr("expected '{'"));
  EXPECT_THAT(refusal("{" + good, 4), HasSubstr("expected well-formed JSON"));
  EXPECT_THAT(refusal("{" + good + "}x", 4), HasSubstr("expected well-formed JSON"));
  EXPECT_THAT(refusal("{\"a\xff\":0}", 4), HasSubstr("expected well-formed JSON"));
  EXPECT_THAT(refusal("{\"a\":[[[[[[[[0]]]]]]]]}", 4), HasSubstr("nested deeper than 4"));
  EXPECT_THAT(refusal("{\"a\":" + std::string(1 << 20, '['), 4), HasSubstr("nested deeper than 4"));
  EXPECT_THAT(refusal("{" + tensor("a", "4", 0, 4, "F33") + "}", 4), HasSubstr("got dtype 'F33'"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[0]}})", 0),
              HasSubstr("no field 'data_offsets'"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0]}})", 0),
              HasSubstr("got 1 data_offsets"));
  EXPECT_THAT(refusal(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"x":0}})", 0),
              HasSubstr("got 4 fields, expected 3"));
  EXPECT_THAT(refusal(R"({"a":7})", 0), HasSubstr("got the number 7, expected an object"));
  EXPECT_THAT(refusal(R"({"__metadata__":{"a":1}})", 0), HasSubstr("expected a text"));
  EXPECT_THAT(refusal(R"({"__metadata__":[]})", 0), HasSubstr("got an array as __metadata__"));
}

TEST(Safetensors, WritesNothingMalformed) {
  const auto refusal_of = [](std::vector<SafetensorsTensor> tensors) {
    return std::string(SafetensorsHeader{.metadata = {}, .tensors = std::move(tensors)}
                           .to_bytes()
                           .status()
                           .message());
  };
  EXPECT_THAT(refusal_of({{"a", at::kByte, {1}, 0, 1}, {"a", at::kByte, {1}, 1, 2}}),
              HasSubstr("a second tensor 'a'"));
  EXPECT_THAT(refusal_of({{"__metadata__", at::kByte, {1}, 0, 1}}), HasSubstr("__metadata__"));
  EXPECT_THAT(refusal_of({{"a\xff", at::kByte, {1}, 0, 1}}), HasSubstr("no UTF-8"));
  EXPECT_THAT(refusal_of({{"a", at::kByte, {1}, 1, 2}}), HasSubstr("expected them to begin at 0"));
}

TEST(Json, Case63_TakesBoundedMemory) {
  std::string numbers = "[0";
  for (int i = 0; i < 1000; ++i) numbers += ",0";
  numbers += "]";
  EXPECT_TRUE(parse_json(numbers, {.depth = 1, .memory_bytes = 1 << 20}).ok());
  const auto refused = parse_json(numbers, {.depth = 1, .memory_bytes = 10000});
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("more than 10000 bytes"));
  // Refused before anything is built: this text is not even complete.
  EXPECT_THAT(std::string(parse_json(numbers.substr(0, 1500), {.depth = 1, .memory_bytes = 10000})
                              .status()
                              .message()),
              HasSubstr("more than 10000 bytes"));
}

TEST(EntryForm, KnowsTheOrderOfMemory) {
  EXPECT_TRUE((EntryForm{{2, 3}, {3, 1}, at::kFloat}.is_row_major()));
  EXPECT_TRUE((EntryForm{{2, 1, 3}, {3, 99, 1}, at::kFloat}.is_row_major()));
  EXPECT_TRUE((EntryForm{{}, {}, at::kFloat}.is_row_major()));
  EXPECT_FALSE((EntryForm{{2, 3}, {1, 2}, at::kFloat}.is_row_major()));
  EXPECT_EQ((EntryForm{{2, 3}, {1, 2}, at::kFloat}.problem()), "");
  EXPECT_THAT((EntryForm{{2, 3}, {1, 1}, at::kFloat}.problem()), HasSubstr("got strides [1, 1]"));
  EXPECT_THAT((EntryForm{{2}, {1}, at::kComplexDouble}.problem()), HasSubstr("got dtype"));
  EXPECT_THAT((EntryForm{{1LL << 62, 2}, {2, 1}, at::kFloat}.problem()), HasSubstr("2^63 bytes"));
}

TEST(EntryForm, RefusesNamesThatMisleadReaders) {
  for (const char* const name : {"a", "model.0.weight", "a#b", "#1-", "a#1-2x", "ü", "../a"}) {
    EXPECT_EQ(name_problem(name), "") << name;
  }
  for (const char* const name : {"", "a#0-4", "#1-2", "a\nb", "\xff", "__metadata__"}) {
    EXPECT_NE(name_problem(name), "") << name;
  }
  EXPECT_NE(name_problem(std::string(1001, 'a')), "");
}

}  // namespace
}  // namespace tessera::internal
