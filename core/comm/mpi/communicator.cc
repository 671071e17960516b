#include "tessera/core/comm/mpi/communicator.h"

#include <utility>

#include <c10/util/Exception.h>

namespace tessera::internal::mpi {

Communicator::Communicator(const Calls& calls, Handle comm, std::function<void()> before_error)
    : calls_(calls), comm_(comm), before_error_(std::move(before_error)) {
  check(calls_.largest_tag(comm_, &largest_tag_), "MPI_Comm_get_attr");
  check(calls_.rank(comm_, &rank_), "MPI_Comm_rank");
  check(calls_.size(comm_, &size_), "MPI_Comm_size");
}

int Communicator::draw_tag() {
  last_tag_ = last_tag_ < largest_tag_ ? last_tag_ + 1 : 1;
  return last_tag_;
}

void Communicator::release() { calls_.release(&comm_); }

void Communicator::check(int code, std::string_view function) const {
  if (code == 0) return;
  before_error_();
  char text[256] = "";
  calls_.error_text(code, text, sizeof(text));
  TORCH_CHECK(false, function, ": ", text);
}

}  // namespace tessera::internal::mpi
