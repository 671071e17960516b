// For tests that need tensors but not torch/torch.h. Its precompiled header costs each file 5 s,
// because GCC instantiates its templates anew in every file.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
