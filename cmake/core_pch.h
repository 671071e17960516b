// For core's files: none includes more of LibTorch than it needs, most need this.
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
