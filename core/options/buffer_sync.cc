#include "tessera/buffer_sync.h"

#include <c10/util/Exception.h>

namespace tessera {

std::string_view to_string(BufferSync sync) {
  switch (sync) {
    case BufferSync::kOnce:
      return "once";
    case BufferSync::kBroadcast:
      return "broadcast";
    case BufferSync::kMean:
      return "mean";
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace tessera
