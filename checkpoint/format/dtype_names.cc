#include "tessera/checkpoint/format/dtype_names.h"

namespace tessera::internal {
namespace {

struct NamedDtype {
  at::ScalarType dtype;
  std::string_view name;
};
constexpr NamedDtype kNamedDtypes[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kByte, "U8"},
    {at::kUInt16, "U16"},
    {at::kUInt32, "U32"},
    {at::kUInt64, "U64"},
    {at::kBool, "BOOL"},
    {at::kComplexFloat, "C64"},
    {at::ScalarType::Float8_e5m2, "F8_E5M2"},
    {at::ScalarType::Float8_e4m3fn, "F8_E4M3"},
    {at::ScalarType::Float8_e8m0fnu, "F8_E8M0"},
};

}  // namespace

std::string_view dtype_name(at::ScalarType dtype) {
  for (const NamedDtype& named : kNamedDtypes) {
    if (named.dtype == dtype) return named.name;
  }
  return "";
}

int64_t dtype_bytes(at::ScalarType dtype) {
  return dtype_name(dtype).empty() ? 0 : static_cast<int64_t>(c10::elementSize(dtype));
}

std::optional<at::ScalarType> dtype_of(std::string_view name) {
  for (const NamedDtype& named : kNamedDtypes) {
    if (named.name == name) return named.dtype;
  }
  return std::nullopt;
}

}  // namespace tessera::internal
