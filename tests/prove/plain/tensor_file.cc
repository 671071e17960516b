#include "tessera/tests/prove/plain/tensor_file.h"

#include <bit>
#include <fstream>

#include <torch/torch.h>

namespace prove {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

const char* name_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kLong:
      return "int64";
    default:
      TORCH_CHECK(false, "[prove] no name for dtype ", dtype);
  }
}

}  // namespace

NamedTensors parameters_of(const torch::nn::Module& model) {
  NamedTensors tensors;
  for (const auto& parameter : model.named_parameters()) {
    tensors.emplace_back(parameter.key(), parameter.value());
  }
  return tensors;
}

void write_tensors(const std::string& stem, const NamedTensors& tensors) {
  std::ofstream values(stem + ".bin", std::ios::binary);
  std::ofstream index(stem + ".txt");
  int64_t offset = 0;
  for (const auto& [name, given] : tensors) {
    const at::Tensor tensor = given.detach().contiguous();
    const auto bytes = static_cast<int64_t>(tensor.nbytes());
    values.write(static_cast<const char*>(tensor.const_data_ptr()), bytes);
    index << name << ' ' << name_of(tensor.scalar_type()) << ' ' << offset;
    for (const int64_t size : tensor.sizes()) index << ' ' << size;
    index << '\n';
    offset += bytes;
  }
  values.close();
  index.close();
  TORCH_CHECK(values.good() && index.good(), "[prove] cannot write ", stem, ".bin and .txt");
}

}  // namespace prove
