#pragma once

#include <cstdint>

namespace tessera::internal {

/// Calls element(i) for i in [0, numel), in blocks whose length the compiler knows, so that it
/// vectorises them. No element may depend on another. `element` is a lambda marked always_inline,
/// so that it is compiled for the targets of the function that calls this (vector_targets.h).
template <typename Element>
[[gnu::always_inline]] inline void for_each_element(int64_t numel, const Element& element) {
  constexpr int64_t kBlock = 64;
  int64_t done = 0;
  for (; done + kBlock <= numel; done += kBlock) {
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC ivdep
#endif
    for (int64_t i = 0; i < kBlock; ++i) element(done + i);
  }
  for (; done < numel; ++done) element(done);
}

}  // namespace tessera::internal
