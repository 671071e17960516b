#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace tessera::internal {

/// What safetensors calls a dtype ("F32", "BF16", "I64", ...); "" where it has no name for it.
std::string_view dtype_name(at::ScalarType dtype);

/// Bytes of one element; 0 where it has no name.
int64_t dtype_bytes(at::ScalarType dtype);

/// The dtype of such a name; nothing where LibTorch has none of whole bytes per element.
std::optional<at::ScalarType> dtype_of(std::string_view name);

}  // namespace tessera::internal
