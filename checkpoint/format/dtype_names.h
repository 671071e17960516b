#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace tessera::internal {

/// Returns the name of a dtype in safetensors ("F32", "BF16", "I64", ...); "" if it has none.
std::string_view dtype_name(at::ScalarType dtype);

/// Returns the bytes of one element; 0 if the dtype has no name in safetensors.
int64_t dtype_bytes(at::ScalarType dtype);

/// Returns the dtype whose name in safetensors is `name`; nothing if LibTorch has no such dtype
/// with whole bytes per element.
std::optional<at::ScalarType> dtype_of(std::string_view name);

}  // namespace tessera::internal
