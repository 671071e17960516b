#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal::fuzz {

inline constexpr int kParsers = 10;

/// Runs one of the parsers of untrusted bytes: the first byte, modulo kParsers, selects the parser,
/// and the rest is its input. Returns true if the parser accepted it. Calls std::abort() if a
/// parser breaks a promise; whoever runs this watches for that, and with a sanitizer for more.
bool read_input(std::string_view input);

/// Valid inputs for every parser, as starting points.
std::vector<std::string> corpus();

/// Inputs found by libFuzzer, each with a path through the parsers that no other has: corpus.txt,
/// one line of base64 each.
std::vector<std::string> found_inputs();

}  // namespace tessera::internal::fuzz
