#include "tessera/optim/cuda/queue.h"

#include <c10/util/Exception.h>

namespace tessera::internal::cuda {

void require_queued(const Api& api, const char* function, int status) {
  TORCH_CHECK(status == 0, "[cuda] ", function, ": got '", api.error_text(status), "' (", status,
              "), expected its kernel to be queued; see which operator failed before with "
              "CUDA_LAUNCH_BLOCKING=1");
}

}  // namespace tessera::internal::cuda
