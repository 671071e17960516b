#include "tessera/core/comm/meeting/message.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

void expect_to_come_back(const Message& message) {
  const auto again = Message::from_bytes(message.to_bytes());
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(*again, message);
}

TEST(Message, ComesBackAsItWas) {
  Message message;
  expect_to_come_back(message);
  message.kind = 255;
  message.fields.emplace_back();
  expect_to_come_back(message);
  message.fields.emplace_back("a\0b\n", 4);
  message.fields.emplace_back(100000, 'x');
  expect_to_come_back(message);
}

TEST(Message, EveryCutAndEveryByteTooManyIsNone) {
  const std::string bytes = Message{.kind = 1, .fields = {"key", "", "value"}}.to_bytes();
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(Message::from_bytes(std::string_view(bytes).substr(0, length))) << length;
  }
  EXPECT_FALSE(Message::from_bytes(bytes + 'x'));
}

TEST(Message, WhatItClaimsIsCheckedBeforeMemoryIsTaken) {
  const std::string huge("\x01\xff\xff\xff\xff", 5);  // 4 billion texts
  EXPECT_FALSE(Message::from_bytes(huge));
  EXPECT_FALSE(Message::from_bytes(std::string("\x01\x01\0\0\0\xff\xff\xff\x7f", 9)));
  std::string many("\x01\xff\xff\0\0", 5);
  many.resize(105);
  EXPECT_FALSE(Message::from_bytes(many));
}

TEST(Message, WhateverIsUnderstoodIsWrittenBackTheSame) {
  // Each message has exactly one encoding, so parsing never guesses.
  std::mt19937 random(1);
  const std::string seed = Message{.kind = 2, .fields = {"a", "bc", ""}}.to_bytes();
  int understood = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = seed;
    for (int change = 0; change < 2; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random() % 8);
    }
    const auto message = Message::from_bytes(bytes);
    if (!message) continue;
    ++understood;
    ASSERT_EQ(message->to_bytes(), bytes);
  }
  EXPECT_GT(understood, 0);
  EXPECT_LT(understood, 20000);
}

}  // namespace
}  // namespace tessera::internal
