#include "tessera/window.h"

#include <atomic>

#include <c10/util/Exception.h>

#include "tessera/process_group.h"

namespace tessera {

void check_window(const at::Tensor& own, std::string_view name) {
  TORCH_CHECK(!name.empty(),
              "[comm] make_window: got an empty name, expected one for errors; give it a name");
  check_collective_tensor("make_window", "'own'", own, at::kCPU);
  TORCH_CHECK(own.dim() == 1, "[comm] make_window: got 'own' of sizes ", own.sizes(), " for '",
              name, "', expected one dimension; flatten it");
}

void check_read(int rank, int64_t begin, const at::Tensor& to, int size, int64_t numel,
                at::ScalarType dtype) {
  TORCH_CHECK(rank >= 0 && rank < size, "[comm] read: got rank ", rank, ", expected 0 to ",
              size - 1, "; ranks are numbered within the group");
  check_collective_tensor("read", "'to'", to, at::kCPU);
  TORCH_CHECK(to.dim() == 1, "[comm] read: got 'to' of sizes ", to.sizes(),
              ", expected one dimension; flatten it");
  TORCH_CHECK(to.scalar_type() == dtype, "[comm] read: got 'to' of ",
              c10::toString(to.scalar_type()), ", expected ", c10::toString(dtype),
              ", the window's dtype; convert after reading");
  TORCH_CHECK(begin >= 0 && begin <= numel && to.numel() <= numel - begin,
              "[comm] read: got elements ", begin, " to ", begin + to.numel(), " of rank ", rank,
              ", expected a range within 0 to ", numel, "; correct it");
}

void check_word(int rank, int64_t index, int size, int64_t numel, at::ScalarType dtype) {
  TORCH_CHECK(rank >= 0 && rank < size, "[comm] load: got rank ", rank, ", expected 0 to ",
              size - 1, "; ranks are numbered within the group");
  TORCH_CHECK(dtype == at::kLong && index >= 0 && index < numel, "[comm] load: got word ", index,
              " of a window of ", numel, " ", c10::toString(dtype),
              ", expected a word of a window of int64; correct it");
}

int64_t load_word(const void* address) {
  // C++20 has no atomic_ref to const; nothing is written.
  auto* word = static_cast<int64_t*>(const_cast<void*>(address));
  return std::atomic_ref<int64_t>(*word).load(std::memory_order_acquire);
}

void store_word(void* address, int64_t value) {
  std::atomic_ref<int64_t>(*static_cast<int64_t*>(address)).store(value, std::memory_order_release);
}

}  // namespace tessera
