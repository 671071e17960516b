// For tests that need tensors but no torch/torch.h, whose precompiled header costs
// each file 5 s: GCC instantiates its templates anew in every file.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
