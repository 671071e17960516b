#include <cstdint>
#include <cstring>
#include <type_traits>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "tessera/tests/support/fake_nccl/clique.h"

namespace tessera::internal::testing {
namespace {

using nccl::DataType;
using nccl::RedOp;

template <typename T>
constexpr bool kIsNarrow = std::is_same_v<T, c10::BFloat16> || std::is_same_v<T, c10::Half>;

template <typename W>
W combine(W a, W b, RedOp op) {
  if (op == RedOp::kMin) return b < a ? b : a;
  if (op == RedOp::kMax) return b > a ? b : a;
  const bool multiplies = op == RedOp::kProd;
  if constexpr (std::is_integral_v<W>) {
    using U = std::make_unsigned_t<W>;
    const auto u = static_cast<U>(a), v = static_cast<U>(b);
    return static_cast<W>(multiplies ? u * v : u + v);
  } else {
    return multiplies ? a * b : a + b;
  }
}

/// Reduces elements [begin, begin + numel) of all parts' inputs.
template <typename T>
std::vector<T> reduced(const Clique::Collective& collective, size_t begin, size_t numel) {
  const std::vector<Part>& parts = collective.parts;
  using W = std::conditional_t<kIsNarrow<T>, float, T>;
  std::vector<T> result(numel);
  for (size_t i = 0; i < numel; ++i) {
    W value{};
    for (size_t place = 0; place < parts.size(); ++place) {
      const Part& part = parts[collective.order[place]];
      W own = static_cast<W>(static_cast<const T*>(part.send)[begin + i]);
      value = place == 0 ? own : combine(value, own, part.op);
    }
    if constexpr (!std::is_integral_v<W>) {
      if (parts[0].op == RedOp::kAvg) value = value / static_cast<W>(parts.size());
    }
    result[i] = static_cast<T>(value);
  }
  return result;
}

template <typename T>
void put(void* to, const std::vector<T>& values) {
  if (!values.empty()) std::memcpy(to, values.data(), values.size() * sizeof(T));
}

template <typename T>
void perform_as(Clique::Collective& collective) {
  std::vector<Part>& parts = collective.parts;
  const std::string& function = parts[0].function;
  const size_t numel = parts[0].numel;
  if (function == "ncclAllReduce") {
    const auto result = reduced<T>(collective, 0, numel);
    for (Part& part : parts) put(part.receive, result);
  } else if (function == "ncclReduceScatter") {
    std::vector<std::vector<T>> results;  // reads all before writing any, for calls in place
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      results.push_back(reduced<T>(collective, rank * numel, numel));
    }
    for (size_t rank = 0; rank < parts.size(); ++rank) put(parts[rank].receive, results[rank]);
  } else if (function == "ncclAllGather") {
    std::vector<T> all;
    for (const Part& part : parts) {
      const T* own = static_cast<const T*>(part.send);
      all.insert(all.end(), own, own + numel);
    }
    for (Part& part : parts) put(part.receive, all);
  } else if (function == "ncclReduce") {
    put(parts[parts[0].root].receive, reduced<T>(collective, 0, numel));
  } else {  // ncclBroadcast
    const T* own = static_cast<const T*>(parts[parts[0].root].send);
    const std::vector<T> value(own, own + numel);
    for (Part& part : parts) put(part.receive, value);
  }
}

size_t bytes_of(DataType dtype) {
  switch (dtype) {
    case DataType::kInt64:
    case DataType::kFloat64:
      return 8;
    case DataType::kInt32:
    case DataType::kFloat32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    default:
      return 1;
  }
}

}  // namespace

void transfer(Clique::Line& line) {
  while (!line.sends.empty() && !line.receives.empty()) {
    Clique::Transfer& from = *line.sends.front();
    Clique::Transfer& to = *line.receives.front();
    if (from.numel != to.numel || from.dtype != to.dtype) return;
    if (from.numel > 0) std::memcpy(to.receive, from.send, from.numel * bytes_of(from.dtype));
    from.over = to.over = true;
    line.sends.pop_front();
    line.receives.pop_front();
  }
}

bool fit(const Clique::Collective& collective) {
  const Part& first = collective.parts[0];
  for (const Part& part : collective.parts) {
    if (part.function != first.function || part.numel != first.numel || part.dtype != first.dtype ||
        part.op != first.op || part.root != first.root || part.reached != first.reached ||
        part.is_other_in != first.is_other_in) {
      return false;
    }
  }
  return true;
}

void perform(Clique::Collective& collective) {
  switch (collective.parts[0].dtype) {
    case DataType::kFloat32:
      return perform_as<float>(collective);
    case DataType::kFloat64:
      return perform_as<double>(collective);
    case DataType::kBfloat16:
      return perform_as<c10::BFloat16>(collective);
    case DataType::kFloat16:
      return perform_as<c10::Half>(collective);
    case DataType::kInt64:
      return perform_as<int64_t>(collective);
    case DataType::kInt32:
      return perform_as<int32_t>(collective);
    case DataType::kInt8:
      return perform_as<int8_t>(collective);
    case DataType::kUint8:
      return perform_as<uint8_t>(collective);
  }
}

}  // namespace tessera::internal::testing
