#pragma once

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tessera/checkpoint/format/safetensors.h"

namespace tessera::internal::testing {

using Tensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Writes a safetensors file with these tensors, in this order.
inline void write_file(const std::string& path, const Tensors& tensors) {
  SafetensorsHeader header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const at::Tensor values = tensor.detach().contiguous();
    header.tensors.push_back({.name = name,
                              .dtype = values.scalar_type(),
                              .shape = values.sizes().vec(),
                              .begin = header.data_bytes(),
                              .end = header.data_bytes() + static_cast<int64_t>(values.nbytes())});
    data.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  std::ofstream(path, std::ios::binary) << *header.to_bytes() << data;
}

}  // namespace tessera::internal::testing
