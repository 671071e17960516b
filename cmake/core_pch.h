// For core's files: each includes only the parts of LibTorch that it needs, and most need these.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
