// For long runs with clang's libFuzzer; fuzz_test is the short version. Built by hand, see
// docs/testing.md.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tessera/tests/fuzz/inputs.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::internal::fuzz::read_input({reinterpret_cast<const char*>(data), size});
  return 0;
}

/// Sometimes starts again from a valid input; inputs that libFuzzer finds belong in corpus.txt.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  static const auto* const inputs = new auto(tessera::internal::fuzz::corpus());
  if (size < 2 || seed % 64 == 0) {
    const std::string& input = (*inputs)[seed / 64 % inputs->size()];
    size = input.size() < most ? input.size() : most;
    for (size_t i = 0; i < size; ++i) data[i] = static_cast<uint8_t>(input[i]);
  }
  return LLVMFuzzerMutate(data, size, most);
}
