// A short version of what libFuzzer does at length (libfuzzer_target.cc): inputs are cut, changed
// and combined at random, from one seed. TESSERA_FUZZ_RUNS sets another number of inputs.
#include <array>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/tests/fuzz/inputs.h"

namespace tessera::internal::fuzz {
namespace {

/// One of `inputs` with small changes.
std::string mutant(const std::vector<std::string>& inputs, std::mt19937& random) {
  std::string input = inputs[random() % inputs.size()];
  for (uint32_t change = random() % 4; change > 0 && input.size() > 1; --change) {
    const size_t at = 1 + random() % (input.size() - 1);
    switch (random() % 5) {
      case 0:
        input[at] = static_cast<char>(random());
        break;
      case 1:
        input[at] = static_cast<char>(input[at] ^ (1 << random() % 8));
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.insert(at, std::string(1 + random() % 8, random() % 2 == 0 ? '\0' : '\xff'));
        break;
      default:
        input += inputs[random() % inputs.size()].substr(1);
    }
  }
  return input;
}

TEST(Fuzz, NothingThatSomebodyElseWroteBreaksAParser) {
  std::vector<std::string> inputs = corpus();
  for (std::string& input : found_inputs()) inputs.push_back(std::move(input));
  const char* const runs = std::getenv("TESSERA_FUZZ_RUNS");
  std::mt19937 random(14);
  std::array<int64_t, kParsers> understood{}, refused{};
  for (int64_t run = runs == nullptr ? 300000 : std::atoll(runs); run > 0; --run) {
    const std::string input = mutant(inputs, random);
    const int parser = static_cast<uint8_t>(input[0]) % kParsers;
    ++(read_input(input) ? understood : refused)[static_cast<size_t>(parser)];
  }
  // If a parser accepted no input, or every input, nothing would be tested.
  for (size_t parser = 0; parser < kParsers; ++parser) {
    EXPECT_GT(understood[parser], 0) << parser;
    EXPECT_GT(refused[parser], 0) << parser;
  }
}

TEST(Fuzz, NothingThatWasFoundBreaksAParser) {
  const std::vector<std::string> inputs = found_inputs();
  EXPECT_GT(inputs.size(), 100U);
  for (const std::string& input : inputs) (void)read_input(input);
}

TEST(Fuzz, EveryWellFormedInputButTheWrongRequestsIsUnderstood) {
  int64_t understood = 0;
  const std::vector<std::string> inputs = corpus();
  for (const std::string& input : inputs) understood += read_input(input) ? 1 : 0;
  EXPECT_TRUE(read_input(inputs.front()));
  EXPECT_TRUE(read_input(inputs.back()));
  EXPECT_GT(understood, kParsers);
}

}  // namespace
}  // namespace tessera::internal::fuzz
