#pragma once

#include <cstdint>

#include "tessera/examples/gpt/model.h"
#include "tessera/examples/gpt/windows.h"
#include "tessera/process_group.h"

namespace gpt {

struct EvaluationSize {
  int64_t sequences = 256;  ///< windows that all ranks together use; 0 or too many: all windows
  int64_t batch = 8;        ///< windows per forward pass
};

/// Mean loss of the model over held-out windows, in nats per byte, without gradients. Collective
/// over `world`: ranks share the windows, and all receive the result. The windows are spread evenly
/// over the text and are the same at every world size.
double held_out_loss(Gpt& model, const Windows& held_out, const EvaluationSize& size,
                     tessera::ProcessGroup& world);

}  // namespace gpt
