#include "tessera/checkpoint/format/dtype_names.h"

namespace tessera::internal {
namespace {

struct NamedDtype {
  at::ScalarType dtype;
  std::string_view name;
  int64_t bytes;
};
constexpr NamedDtype kNamedDtypes[] = {
    {at::kDouble, "F64", 8},
    {at::kFloat, "F32", 4},
    {at::kHalf, "F16", 2},
    {at::kBFloat16, "BF16", 2},
    {at::kLong, "I64", 8},
    {at::kInt, "I32", 4},
    {at::kShort, "I16", 2},
    {at::kChar, "I8", 1},
    {at::kByte, "U8", 1},
    {at::kUInt16, "U16", 2},
    {at::kUInt32, "U32", 4},
    {at::kUInt64, "U64", 8},
    {at::kBool, "BOOL", 1},
    {at::kComplexFloat, "C64", 8},
    {at::ScalarType::Float8_e5m2, "F8_E5M2", 1},
    {at::ScalarType::Float8_e4m3fn, "F8_E4M3", 1},
    {at::ScalarType::Float8_e8m0fnu, "F8_E8M0", 1},
};

}  // namespace

std::string_view dtype_name(at::ScalarType dtype) {
  for (const NamedDtype& named : kNamedDtypes) {
    if (named.dtype == dtype) return named.name;
  }
  return "";
}

int64_t dtype_bytes(at::ScalarType dtype) {
  for (const NamedDtype& named : kNamedDtypes) {
    if (named.dtype == dtype) return named.bytes;
  }
  return 0;
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const NamedDtype& named : kNamedDtypes) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera::internal
