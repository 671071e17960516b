#include "tessera/core/comm/mpi/window.h"

#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>

#include "tessera/core/comm/groups/host_memory.h"
#include "tessera/core/comm/mpi/progress.h"

namespace tessera::internal::mpi {

Window::Window(std::shared_ptr<Member> member, int64_t number, at::Tensor own)
    : member_(std::move(member)), number_(number), own_(std::move(own)) {
  Progress::instance().post(
      [member = member_, number, own = own_] { member->open_window(number, own); });
}

Window::~Window() {
  if (!member_->world().origin().is_here()) return;
  Progress::instance().post([member = member_, number = number_] {
    member->world().guard([&] { member->close_window(number); });
  });
}

std::shared_ptr<Work> Window::start_read(int rank, int64_t begin, const at::Tensor& to,
                                         std::string_view tag, int64_t /*version*/) {
  check_read(rank, begin, to, member_->size(), own_.numel(), own_.scalar_type());
  member_->require_usable("read", -1, tag);
  if (to.numel() == 0) return completed_work();
  const int64_t begin_bytes = begin * static_cast<int64_t>(to.element_size());
  if (rank != member_->rank()) {
    return ask("read", rank, {number_, begin_bytes, static_cast<int64_t>(to.nbytes()), 0}, to, tag);
  }
  std::memmove(data_of(to), data_of(own_) + begin_bytes, to.nbytes());
  return completed_work();
}

std::shared_ptr<Call> Window::ask(const char* op, int owner, const ReadRequest& request,
                                  const at::Tensor& to, std::string_view tag) const {
  const Collective form{.op = Op::kRecv, .output = to, .input = to, .peer = owner, .tag = tag};
  auto call = member_->make_call(form, /*sequence=*/-1, op);
  const bool is_posted = Progress::instance().post([member = member_, call, owner, request] {
    World& world = member->world();
    world.guard([&] { member->start_read(call, owner, request); });
    const std::string cause = world.failure();
    if (!cause.empty()) call->fail(cause);
  });
  if (!is_posted) call->fail(kProcessEnds);
  return call;
}

int64_t Window::load(int rank, int64_t index) const {
  check_word(rank, index, member_->size(), own_.numel(), own_.scalar_type());
  constexpr auto kWord = static_cast<int64_t>(sizeof(int64_t));
  if (rank == member_->rank()) {
    member_->require_own_process("load", "");
    return load_word(data_of(own_) + index * kWord);
  }
  member_->require_usable("load", -1, "");
  const at::Tensor word = at::empty({1}, at::kLong);
  ask("load", rank, {number_, index * kWord, kWord, 1}, word, "")->wait();
  return *word.const_data_ptr<int64_t>();
}

void Window::store(int64_t index, int64_t value) {
  check_word(member_->rank(), index, member_->size(), own_.numel(), own_.scalar_type());
  member_->require_own_process("store", "");
  store_word(own_.mutable_data_ptr<int64_t>() + index, value);
}

}  // namespace tessera::internal::mpi
