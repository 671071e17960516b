#include "tessera/core/comm/groups/remote_memory.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/fork.h"
#include "tessera/errors.h"

namespace tessera::internal {
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
    check_word(rank, index, place_.size, own_.numel(), own_.scalar_type());
    require_own_process("load", "");
    return memory_->load(rank, index * static_cast<int64_t>(sizeof(int64_t)));
  }

  void store(int64_t index, int64_t value) override {
    check_word(place_.rank, index, place_.size, own_.numel(), own_.scalar_type());
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

}  // namespace

std::unique_ptr<Window> window_over(std::shared_ptr<RemoteMemory> memory, at::Tensor own,
                                    WindowPlace place) {
  return std::make_unique<RemoteWindow>(std::move(memory), std::move(own), std::move(place));
}

}  // namespace tessera::internal
