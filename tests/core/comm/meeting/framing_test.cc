#include "tessera/core/comm/meeting/framing.h"

#include <string>

#include <gtest/gtest.h>

namespace tessera::internal {
namespace {

struct Pair {
  Framing member{Framing::Side::kMember};
  Framing server{Framing::Side::kServer};

  void authenticate(const std::string& token = "secret", const std::string& other = "secret") {
    member.authenticate_with(MacKey::of_token(token));
    server.authenticate_with(MacKey::of_token(other));
  }
};

TEST(Framing, FramesArriveHoweverTheStreamIsCut) {
  Pair pair;
  pair.authenticate();
  std::string bytes;
  for (const char* text : {"one", "", "3"}) bytes += pair.member.wrap(text);
  std::string heard;
  for (const char byte : bytes) {
    pair.server.add({&byte, 1});
    while (const auto payload = pair.server.take()) heard += "[" + *payload + "]";
  }
  EXPECT_EQ(heard, "[one][][3]");
  EXPECT_FALSE(pair.server.is_broken());
}

TEST(Framing, AnotherTokenDoesNotVerify) {
  Pair pair;
  pair.authenticate("secret", "another");
  pair.server.add(pair.member.wrap("text"));
  EXPECT_FALSE(pair.server.take());
  EXPECT_TRUE(pair.server.is_broken());
}

TEST(Framing, EachChangedBitIsNoticed) {
  for (size_t bit = 0; bit < 8 * (4 + 4 + MacKey::kBytes); ++bit) {
    Pair pair;
    pair.authenticate();
    std::string bytes = pair.member.wrap("text");
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    pair.server.add(bytes + std::string(300, '\0'));
    EXPECT_FALSE(pair.server.take()) << bit;
  }
}

TEST(Framing, NoFrameFitsTwiceOrTurnedAround) {
  Pair pair;
  pair.authenticate();
  const std::string first = pair.member.wrap("pay");
  pair.server.add(first);
  EXPECT_EQ(pair.server.take(), "pay");
  pair.server.add(first);  // a replay
  EXPECT_FALSE(pair.server.take());
  EXPECT_TRUE(pair.server.is_broken());
  Pair other;
  other.authenticate();
  other.member.add(other.member.wrap("pay"));  // returned to its sender
  EXPECT_FALSE(other.member.take());
}

TEST(Framing, AnUnprovenSideCannotSendMuch) {
  Pair pair;
  pair.server.add(pair.member.wrap(std::string(Framing::kMaxUnproven, 'x')));
  EXPECT_TRUE(pair.server.take());
  pair.authenticate();                              // a key proves nothing yet
  pair.server.add(std::string("\x01\x04\0\0", 4));  // 1025 bytes to come
  EXPECT_FALSE(pair.server.take());
  EXPECT_TRUE(pair.server.is_broken());
}

TEST(MacKey, PartsAreNotRunTogether) {
  const MacKey key = MacKey::of_token("t");
  EXPECT_NE(key.compute({"ab", "c"}), key.compute({"a", "bc"}));
  EXPECT_EQ(key.compute({"ab", "c"}), MacKey::of_token("t").compute({"ab", "c"}));
  EXPECT_NE(key.derive({"x"}).compute({"a"}), key.compute({"a"}));
  EXPECT_NE(MacKey::new_nonce(), MacKey::new_nonce());
}

}  // namespace
}  // namespace tessera::internal
