#include "tessera/optim/slices/elementwise_optimizer.h"

#include <c10/util/Exception.h>

namespace tessera::internal {

void require_shard(const OptimizerShard& shard, const ParameterTable& table) {
  const at::Tensor& values = shard.values;
  TORCH_CHECK(values.defined() && values.dim() == 1 && values.is_contiguous(),
              "[optim] shard: got ", values.defined() ? values.dim() : 0,
              " dimensions, expected a contiguous 1-d tensor");
  TORCH_CHECK(values.scalar_type() == c10::kFloat || values.scalar_type() == c10::kDouble,
              "[optim] parameter dtype: got ", values.scalar_type(),
              ", expected Float or Double; parameters of 16 bits train over masters");
  for (const Segment& segment : shard.segments) {
    TORCH_CHECK(segment.parameter < table.size() && table[segment.parameter].is_trainable &&
                    segment.buffer_offset >= 0 && segment.numel >= 0 &&
                    segment.buffer_offset + segment.numel <= values.numel(),
                "[optim] segment: got parameter ", segment.parameter, " at elements ",
                segment.buffer_offset, " to ", segment.buffer_offset + segment.numel,
                ", expected a trainable parameter inside the shard's ", values.numel(),
                " elements");
  }
}

}  // namespace tessera::internal
