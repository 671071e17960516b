#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/window.h"

namespace tessera::internal {

/// The ranks' parts of a window. May outlive the group.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;

  /// Returns why reads fail; "" if they do not.
  virtual std::string failure() const = 0;
  /// Reads `to.nbytes()` bytes from byte `begin_bytes` of rank `rank`'s part. `version`: as in
  /// Window::start_read().
  virtual std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                                     std::string_view tag, int64_t version) = 0;
  /// Loads the int64 at byte `begin_bytes` of rank `rank`'s part, with acquire order.
  virtual int64_t load(int rank, int64_t begin_bytes) = 0;
};

/// The rank and the group that hold a window. `number`: the rank's number in the job.
struct WindowPlace {
  int rank = 0;
  int size = 1;
  int number = 0;
  std::string group;
};

/// Local. Makes a window over `memory`, in which this rank's part is `own`. The window may outlive
/// its group. It keeps neither the group nor the link alive, so it does not delay leaving the
/// group. In a child of fork() all calls throw CommError.
std::unique_ptr<Window> window_over(std::shared_ptr<RemoteMemory> memory, at::Tensor own,
                                    WindowPlace place);

}  // namespace tessera::internal
