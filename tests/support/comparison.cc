#include "tessera/tests/support/comparison.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <sstream>

#include <torch/torch.h>

#include "tessera/tests/support/same_bits.h"

namespace tessera::internal::testing {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

/// Returns lines for names that only one side has, and for different shapes or dtypes.
std::string difference_in_kind(const Tensors& got, const Tensors& expected) {
  std::ostringstream text;
  for (const auto& [name, tensor] : got) {
    if (!expected.contains(name)) text << "'" << name << "': not expected\n";
  }
  for (const auto& [name, tensor] : expected) {
    const auto it = got.find(name);
    if (it == got.end()) {
      text << "'" << name << "': missing\n";
    } else if (it->second.sizes() != tensor.sizes() ||
               it->second.scalar_type() != tensor.scalar_type()) {
      text << "'" << name << "': got " << it->second.scalar_type() << it->second.sizes()
           << ", expected " << tensor.scalar_type() << tensor.sizes() << "\n";
    }
  }
  return text.str();
}

/// Returns a line about the element that differs most. A NaN counts as an infinite difference.
std::string worst_element(const std::string& name, const at::Tensor& got,
                          const at::Tensor& expected) {
  const at::Tensor a = got.detach().to(at::kDouble).reshape({-1});
  const at::Tensor b = expected.detach().to(at::kDouble).reshape({-1});
  const at::Tensor distance = (a - b).abs().nan_to_num(INFINITY, INFINITY);
  const int64_t worst = distance.argmax().item<int64_t>();
  std::ostringstream text;
  text.precision(17);
  text << "'" << name << "' element " << worst << " of " << a.numel() << ": got "
       << a[worst].item<double>() << ", expected " << b[worst].item<double>() << "\n";
  return text.str();
}

bool is_close(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  if (a.numel() == 0) return true;
  const double scale = std::max(1.0, b.abs().max().item<double>());
  const double distance = (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
  return distance <= tolerance * scale;  // false for NaN
}

std::string number_differences(const char* what, const std::vector<double>& got,
                               const std::vector<double>& expected, double tolerance) {
  std::ostringstream text;
  text.precision(17);
  if (got.size() != expected.size()) {
    text << what << ": got " << got.size() << " values, expected " << expected.size() << "\n";
    return text.str();
  }
  for (size_t i = 0; i < got.size(); ++i) {
    const bool is_same =
        tolerance == 0.0
            ? std::bit_cast<uint64_t>(got[i]) == std::bit_cast<uint64_t>(expected[i])
            : std::abs(got[i] - expected[i]) <= tolerance * std::max(1.0, std::abs(expected[i]));
    if (!is_same) {
      text << what << " " << i << ": got " << got[i] << ", expected " << expected[i] << "\n";
    }
  }
  return text.str();
}

}  // namespace

std::string bit_differences(const Tensors& got, const Tensors& expected) {
  std::string text = difference_in_kind(got, expected);
  if (!text.empty()) return text;
  for (const auto& [name, tensor] : expected) {
    if (!have_same_bits(got.at(name), tensor)) text += worst_element(name, got.at(name), tensor);
  }
  return text;
}

std::string bit_differences(const std::vector<double>& got, const std::vector<double>& expected) {
  return number_differences("value", got, expected, 0.0);
}

std::string bit_differences(const Outcome& got, const Outcome& expected) {
  std::string text = bit_differences(got.parameters, expected.parameters);
  text += number_differences("gradient norm", got.grad_norms, expected.grad_norms, 0.0);
  if (got.losses_by_rank.size() != expected.losses_by_rank.size()) return text + "other ranks\n";
  for (size_t rank = 0; rank < expected.losses_by_rank.size(); ++rank) {
    text +=
        number_differences("loss", got.losses_by_rank[rank], expected.losses_by_rank[rank], 0.0);
  }
  return text;
}

std::string differences(const Tensors& got, const Tensors& expected, double tolerance) {
  std::string text = difference_in_kind(got, expected);
  if (!text.empty()) return text;
  for (const auto& [name, tensor] : expected) {
    if (!is_close(got.at(name), tensor, tolerance)) {
      text += worst_element(name, got.at(name), tensor);
    }
  }
  return text;
}

std::string differences(const Outcome& got, const Outcome& expected, double tolerance) {
  return differences(got.parameters, expected.parameters, tolerance) +
         number_differences("loss", got.losses, expected.losses, tolerance) +
         number_differences("gradient norm", got.grad_norms, expected.grad_norms, tolerance);
}

}  // namespace tessera::internal::testing
