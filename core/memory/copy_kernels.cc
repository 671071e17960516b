#include "tessera/core/memory/copy_kernels.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace tessera::internal {
namespace {

/// Returns the size of the last-level cache. Asks the kernel first, because in virtual machines
/// sysconf() may return several times as much.
int64_t find_last_level_cache_bytes() {
  int64_t kib = 0;
  std::ifstream("/sys/devices/system/cpu/cpu0/cache/index3/size") >> kib;
  if (kib > 0) return kib << 10;
#ifdef _SC_LEVEL3_CACHE_SIZE
  const int64_t bytes = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  if (bytes > 0) return bytes;
#endif
  return int64_t{32} << 20;
}

int64_t last_level_cache_bytes() {
  static const int64_t bytes = find_last_level_cache_bytes();
  return bytes;
}

}  // namespace

bool streaming_pays(int64_t bytes_per_rank, int ranks) {
  return bytes_per_rank > last_level_cache_bytes() / 2 / ranks;
}

#ifdef __SSE2__

void copy_streaming(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kLineBytes = 64;
  // How far ahead to prefetch. This may reach past the end, which is harmless.
  constexpr int64_t kAheadBytes = 512;
  auto* target = static_cast<char*>(to);
  const auto* source = static_cast<const char*>(from);
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(target) % kLineBytes);
  const int64_t head = std::min(misaligned == 0 ? 0 : kLineBytes - misaligned, bytes);
  if (head > 0) std::memcpy(target, source, static_cast<size_t>(head));
  int64_t done = head;
  for (; done + kLineBytes <= bytes; done += kLineBytes) {
    _mm_prefetch(source + done + kAheadBytes, _MM_HINT_T0);
    const auto* line = reinterpret_cast<const __m128i*>(source + done);
    auto* place = reinterpret_cast<__m128i*>(target + done);
    const __m128i a = _mm_loadu_si128(line);
    const __m128i b = _mm_loadu_si128(line + 1);
    const __m128i c = _mm_loadu_si128(line + 2);
    const __m128i d = _mm_loadu_si128(line + 3);
    _mm_stream_si128(place, a);
    _mm_stream_si128(place + 1, b);
    _mm_stream_si128(place + 2, c);
    _mm_stream_si128(place + 3, d);
  }
  if (done < bytes) std::memcpy(target + done, source + done, static_cast<size_t>(bytes - done));
  // The fence is needed because a later release orders ordinary stores, but not streaming ones.
  _mm_sfence();
}

#else

void copy_streaming(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

#endif

}  // namespace tessera::internal
