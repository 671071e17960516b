#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tessera/core/numbers/device_code.h"

// How the threads of a launch share out the elements of flat arrays. Plain index arithmetic, so
// that tests on the CPU can run any number of "threads" one after the other.
namespace tessera::internal::cuda {

/// One of `count` workers that share a job: a thread of a block, a block of a grid.
struct Worker {
  int64_t index;
  int64_t count;
};

/// Elements that a thread reads or writes at once: 16 bytes of fp32, 8 of a 16-bit type. A warp's
/// accesses lie side by side.
inline constexpr int kPackNumel = 4;

template <typename T>
struct alignas(kPackNumel * sizeof(T)) Pack {
  T at[kPackNumel];
};

template <typename T>
TESSERA_DEVICE_CODE inline Pack<T> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T>*>(from);
}

template <typename T>
TESSERA_DEVICE_CODE inline void store_pack(T* to, const Pack<T>& pack) {
#ifdef __CUDA_ARCH__
  // With an assignment, nvcc would write a pack of 16-bit elements in several stores.
  using Word = std::conditional_t<sizeof(pack) == sizeof(uint4), uint4, uint2>;
  __stwb(reinterpret_cast<Word*>(to), std::bit_cast<Word>(pack));
#else
  *reinterpret_cast<Pack<T>*>(to) = pack;
#endif
}

/// Returns true if element `index` of `array` is aligned so that a pack can begin there.
template <typename T>
TESSERA_DEVICE_CODE inline bool begins_pack(const T* array, int64_t index) {
  return reinterpret_cast<uintptr_t>(array + index) % sizeof(Pack<T>) == 0;
}

/// Elements [0, numel), split into `head` single elements, `packs` packs, and single elements to
/// the end.
struct PackRange {
  int64_t numel;
  int64_t head;
  int64_t packs;
};

/// Splits [0, numel). begin_packs(index) tells whether `index` is aligned for packs in all arrays.
/// If no offset aligns all arrays, the range has no packs.
template <typename BeginPacks>
TESSERA_DEVICE_CODE inline PackRange pack_range_where(int64_t numel,
                                                      const BeginPacks& begin_packs) {
  for (int64_t head = 0; head < kPackNumel && head < numel; ++head) {
    if (begin_packs(head)) return {numel, head, (numel - head) / kPackNumel};
  }
  return {numel, numel, 0};
}

/// Returns the range for arrays that begin at these addresses.
template <typename... T>
TESSERA_DEVICE_CODE inline PackRange pack_range(int64_t numel, const T*... arrays) {
  return pack_range_where(numel, [=](int64_t at) { return (begins_pack(arrays, at) && ...); });
}

/// Calls visit.single(index) and visit.pack(index of its first element) for this thread's share:
/// every element of the range is visited by exactly one of `thread.count` threads.
template <typename Visitor>
TESSERA_DEVICE_CODE inline void walk(const PackRange& range, Worker thread, const Visitor& visit) {
  for (int64_t i = thread.index; i < range.head; i += thread.count) visit.single(i);
  for (int64_t pack = thread.index; pack < range.packs; pack += thread.count) {
    visit.pack(range.head + pack * kPackNumel);
  }
  const int64_t tail = range.head + range.packs * kPackNumel;
  for (int64_t i = tail + thread.index; i < range.numel; i += thread.count) visit.single(i);
}

}  // namespace tessera::internal::cuda
