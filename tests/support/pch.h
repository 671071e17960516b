// For tests that need tensors but not torch/torch.h. Even precompiled, torch/torch.h costs each
// file 5 s, because GCC instantiates its templates again in every file.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
