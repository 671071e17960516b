#pragma once

#include <chrono>

namespace tessera::internal::testing {

/// Ranks that take longer than this are taken to hang. Sanitizers make everything slower.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr std::chrono::seconds kPatience(300);
#else
inline constexpr std::chrono::seconds kPatience(60);
#endif

}  // namespace tessera::internal::testing
