#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. How many GPUs a program may use that is started here, without asking CUDA, which takes a
/// second and memory on each: those that CUDA_VISIBLE_DEVICES of `inherited` ("NAME=value" strings)
/// lists, up to the first that is none, as CUDA reads it; where it is not set, the device files of
/// NVIDIA's driver in `devices`.
int count_visible_gpus(const std::vector<std::string>& inherited,
                       const std::string& devices = "/dev");

}  // namespace tessera::internal
