#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera::internal::fuzz {

inline constexpr int kParsers = 10;

/// Everything that reads bytes of somebody else's: the first byte, modulo kParsers, says which
/// parser, the rest is its input. Returns whether that was understood. Ends the process by
/// std::abort() where a promise of a parser is broken; whoever runs it watches for that, and with a
/// sanitizer for more.
bool read_input(std::string_view input);

/// Well-formed inputs of every parser, to begin from.
std::vector<std::string> corpus();

/// Inputs that libFuzzer has found, each of which goes a way through the parsers that the others do
/// not: corpus.txt, a line of base64 each.
std::vector<std::string> found_inputs();

}  // namespace tessera::internal::fuzz
