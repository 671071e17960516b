#include "tessera/core/comm/group/window.h"

#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/errors.h"

namespace tessera::internal {

GroupWindow::GroupWindow(const Link& link, std::string group, at::Tensor own,
                         std::shared_ptr<RemoteMemory> memory)
    : rank_(link.rank()),
      size_(link.size()),
      number_(link.number_of(link.rank())),
      group_(std::move(group)),
      own_(std::move(own)),
      memory_(std::move(memory)) {}

GroupWindow::~GroupWindow() {
  if (!origin_.is_here()) never_destroy(memory_);
}

void GroupWindow::require_own_process(const char* op, std::string_view tag) const {
  if (origin_.is_here()) return;
  throw CommError({op, group_, -1, rank_, std::string(tag)},
                  origin_.fork_error(absl::StrCat("rank ", number_)));
}

std::shared_ptr<Work> GroupWindow::start_read(int rank, int64_t begin, const at::Tensor& to,
                                              std::string_view tag, int64_t version) {
  check_read(rank, begin, to, size_, own_.numel(), own_.scalar_type());
  require_own_process("read", tag);
  const std::string cause = memory_->failure();
  if (!cause.empty()) throw CommError({"read", group_, -1, rank_, std::string(tag)}, cause);
  if (to.numel() == 0) return completed_work();
  return memory_->read(rank, begin * static_cast<int64_t>(to.element_size()), to, tag, version);
}

int64_t GroupWindow::load(int rank, int64_t index) const {
  check_word(rank, index, size_, own_.numel(), own_.scalar_type());
  require_own_process("load", "");
  return memory_->load(rank, index * static_cast<int64_t>(sizeof(int64_t)));
}

void GroupWindow::store(int64_t index, int64_t value) {
  check_word(rank_, index, size_, own_.numel(), own_.scalar_type());
  require_own_process("store", "");
  store_word(own_.mutable_data_ptr<int64_t>() + index, value);
}

}  // namespace tessera::internal
