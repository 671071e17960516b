#include "tessera/window.h"

#include <atomic>
#include <utility>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/groups/remote_memory.h"
#include "tessera/core/process/fork.h"
#include "tessera/errors.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

namespace {

class RemoteWindow final : public Window {
 public:
  RemoteWindow(std::shared_ptr<RemoteMemory> memory, at::Tensor own, WindowPlace place)
      : own_(std::move(own)), place_(std::move(place)), memory_(std::move(memory)) {}

  ~RemoteWindow() override {
    if (!origin_.is_here()) never_destroy(memory_);
  }

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    check_read(rank, begin, to, place_.size, own_.numel(), own_.scalar_type());
    require_own_process("read", tag);
    const std::string cause = memory_->failure();
    if (!cause.empty()) throw error("read", tag, cause);
    if (to.numel() == 0) return completed_work();
    return memory_->read(rank, begin * static_cast<int64_t>(to.element_size()), to, tag, version);
  }

  int64_t load(int rank, int64_t index) const override {
    check_word("load", rank, index, place_.size, own_.numel(), own_.scalar_type());
    require_own_process("load", "");
    return memory_->load(rank, index * static_cast<int64_t>(sizeof(int64_t)));
  }

  void store(int64_t index, int64_t value) override {
    check_word("store", place_.rank, index, place_.size, own_.numel(), own_.scalar_type());
    require_own_process("store", "");
    store_word(own_.mutable_data_ptr<int64_t>() + index, value);
  }

 private:
  CommError error(const char* op, std::string_view tag, const std::string& cause) const {
    return {{op, place_.group, -1, place_.rank, std::string(tag)}, cause};
  }
  void require_own_process(const char* op, std::string_view tag) const {
    if (origin_.is_here()) return;
    throw error(op, tag, origin_.fork_error(absl::StrCat("rank ", place_.number)));
  }

  const Origin origin_;
  const at::Tensor own_;
  const WindowPlace place_;
  const std::shared_ptr<RemoteMemory> memory_;
};

/// Checks that `tensor` is a one-dimensional CPU tensor that collectives accept.
void check_flat(const char* op, const char* argument, const at::Tensor& tensor) {
  check_collective_tensor(op, argument, tensor, at::kCPU);
  TORCH_CHECK(tensor.dim() == 1, "[comm] ", op, ": got ", argument, " of sizes ", tensor.sizes(),
              ", expected one dimension; flatten it");
}

void check_rank(const char* op, int rank, int size) {
  TORCH_CHECK(rank >= 0 && rank < size, "[comm] ", op, ": got rank ", rank, ", expected 0 to ",
              size - 1, "; ranks are numbered within the group");
}

}  // namespace

void check_window(const at::Tensor& own, std::string_view name) {
  TORCH_CHECK(!name.empty(),
              "[comm] make_window: got an empty name, expected one for errors; give it a name");
  check_flat("make_window", "'own'", own);
}

void check_read(int rank, int64_t begin, const at::Tensor& to, int size, int64_t numel,
                at::ScalarType dtype) {
  check_rank("read", rank, size);
  check_flat("read", "'to'", to);
  TORCH_CHECK(to.scalar_type() == dtype, "[comm] read: got 'to' of ",
              c10::toString(to.scalar_type()), ", expected ", c10::toString(dtype),
              ", the window's dtype; convert after reading");
  TORCH_CHECK(begin >= 0 && begin <= numel && to.numel() <= numel - begin,
              "[comm] read: got elements ", begin, " to ", begin + to.numel(), " of rank ", rank,
              ", expected a range within 0 to ", numel, "; correct it");
}

void check_word(const char* op, int rank, int64_t index, int size, int64_t numel,
                at::ScalarType dtype) {
  check_rank(op, rank, size);
  TORCH_CHECK(dtype == at::kLong && index >= 0 && index < numel, "[comm] ", op, ": got word ",
              index, " of a window of ", numel, " ", c10::toString(dtype),
              ", expected a word of a window of int64; correct it");
}

int64_t load_word(const void* address) {
  // Casts const away, because std::atomic_ref takes no const type in C++20. Nothing is written.
  auto* word = static_cast<int64_t*>(const_cast<void*>(address));
  return std::atomic_ref<int64_t>(*word).load(std::memory_order_acquire);
}

void store_word(void* address, int64_t value) {
  std::atomic_ref<int64_t>(*static_cast<int64_t*>(address)).store(value, std::memory_order_release);
}

std::unique_ptr<Window> internal::window_over(std::shared_ptr<RemoteMemory> memory, at::Tensor own,
                                              WindowPlace place) {
  return std::make_unique<RemoteWindow>(std::move(memory), std::move(own), std::move(place));
}

}  // namespace tessera
