#include "tessera/options.h"

#include <c10/util/Exception.h>

namespace tessera {

std::string_view to_string(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kParameters:
      return "parameters";
  }
  TORCH_INTERNAL_ASSERT(false);
}

}  // namespace tessera
