#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/group/link.h"
#include "tessera/core/process/fork.h"
#include "tessera/window.h"

namespace tessera::internal {

/// A window of a Group, which it may outlive: holds the ranks' memory and its own, but neither the
/// group nor its link, so it does not delay this rank's leaving them. In a child of fork() all
/// calls throw CommError.
class GroupWindow final : public Window {
 public:
  /// Of `link`'s rank, whose part is `own`.
  GroupWindow(const Link& link, std::string group, at::Tensor own,
              std::shared_ptr<RemoteMemory> memory);
  ~GroupWindow() override;

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override;
  int64_t load(int rank, int64_t index) const override;
  void store(int64_t index, int64_t value) override;

 private:
  void require_own_process(const char* op, std::string_view tag) const;

  const Origin origin_;
  const int rank_;
  const int size_;
  const int number_;
  const std::string group_;
  const at::Tensor own_;
  const std::shared_ptr<RemoteMemory> memory_;
};

}  // namespace tessera::internal
