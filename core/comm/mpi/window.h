#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "tessera/core/comm/mpi/member.h"
#include "tessera/window.h"

namespace tessera::internal::mpi {

/// Reads that the owners' progress threads answer. Note [Windows over MPI]. Its memory may lie
/// anywhere. In a child of fork() all calls throw CommError.
class Window final : public tessera::Window {
 public:
  /// Local: from now on this rank serves it, as number `number` of the group. Others may be asked
  /// when the make_window() of that number is over.
  Window(std::shared_ptr<Member> member, int64_t number, at::Tensor own);
  /// Local. What is being read comes; the memory is kept while others may read it.
  ~Window() override;

  /// `version` makes no difference: nothing is kept.
  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t index) const override;
  void store(int64_t index, int64_t value) override;

 private:
  std::shared_ptr<Call> ask(const char* op, int owner, const ReadRequest& request,
                            const at::Tensor& to, std::string_view tag) const;

  const std::shared_ptr<Member> member_;
  const int64_t number_;
  const at::Tensor own_;
};

}  // namespace tessera::internal::mpi
