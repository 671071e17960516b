#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "tessera/window.h"

namespace tessera::internal {

/// The ranks' parts of a window. Outlives the group.
class RemoteMemory {
 public:
  virtual ~RemoteMemory() = default;

  /// Why reads fail; "" if they do not.
  virtual std::string failure() const = 0;
  /// Reads from rank `rank`'s part, at that byte, as many bytes as `to` has. `version`: as
  /// Window::start_read().
  virtual std::shared_ptr<Work> read(int rank, int64_t begin_bytes, const at::Tensor& to,
                                     std::string_view tag, int64_t version) = 0;
  /// One int64, with acquire order.
  virtual int64_t load(int rank, int64_t begin_bytes) = 0;
};

/// Which rank of which group has a window. `number`: what the job calls the rank.
struct WindowPlace {
  int rank = 0;
  int size = 1;
  int number = 0;
  std::string group;
};

/// Local. A window over `memory`, where this rank's part is `own`. It may outlive its group: holds
/// neither that nor its link, so it does not delay this rank's leaving them. In a child of fork()
/// all calls throw CommError.
std::unique_ptr<Window> window_over(std::shared_ptr<RemoteMemory> memory, at::Tensor own,
                                    WindowPlace place);

}  // namespace tessera::internal
