#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <utility>

#include <c10/util/Exception.h>

#include "tessera/mpi_calls.h"

namespace tessera::internal::mpi {

using tessera::mpi::Calls;
using tessera::mpi::Handle;

/// A communicator as this rank sees it. Turns MPI errors into exceptions. For the progress thread
/// only.
class Communicator {
 public:
  /// Takes over `comm`. Calls `before_error` before it throws an MPI error; `before_error` may
  /// throw the cause instead.
  Communicator(const Calls& calls, Handle comm, std::function<void()> before_error)
      : calls_(calls), comm_(comm), before_error_(std::move(before_error)) {
    check(calls_.largest_tag(comm_, &largest_tag_), "MPI_Comm_get_attr");
    check(calls_.rank(comm_, &rank_), "MPI_Comm_rank");
    check(calls_.size(comm_, &size_), "MPI_Comm_size");
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const Calls& calls() const { return calls_; }
  Handle comm() const { return comm_; }
  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns a tag for the data of one call. Tags repeat only after thousands of calls.
  int draw_tag() { return last_tag_ = last_tag_ < largest_tag_ ? last_tag_ + 1 : 1; }
  void release() { calls_.release(&comm_); }

  /// Throws c10::Error unless `code` is 0. Its text is "<function>: <MPI's text>", where `function`
  /// is a name such as "MPI_Isend".
  void check(int code, std::string_view function) const {
    if (code == 0) return;
    before_error_();
    char text[256] = "";
    calls_.error_text(code, text, sizeof(text));
    TORCH_CHECK(false, function, ": ", text);
  }

  /// Returns nullopt if the request has not completed. If it has, returns the rank that sent the
  /// message; if the request is a send, the number has no meaning.
  std::optional<int> source_if_over(Handle& request) {
    int is_over = 0;
    int source = 0;
    check(calls_.test(&request, &is_over, &source), "MPI_Test");
    if (is_over == 0) return std::nullopt;
    ++ended_;
    return source;
  }
  bool is_over(Handle& request) { return source_if_over(request).has_value(); }
  /// Returns how many requests have completed so far, which shows whether there is progress.
  uint64_t ended() const { return ended_; }

 private:
  const Calls& calls_;
  Handle comm_;
  const std::function<void()> before_error_;
  int rank_ = 0;
  int size_ = 1;
  int largest_tag_ = 0;
  int last_tag_ = 0;
  uint64_t ended_ = 0;
};

}  // namespace tessera::internal::mpi
