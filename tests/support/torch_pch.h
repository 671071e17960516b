// For tests that train: torch/torch.h costs 14 s per file, and precompiled 8 s, because GCC
// instantiates its templates anew in every file.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
