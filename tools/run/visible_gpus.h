#pragma once

#include <string>
#include <vector>

namespace tessera::internal {

/// Local. Returns how many GPUs a program started here may use, without asking CUDA, which takes a
/// second and memory on each GPU. Counts the entries of CUDA_VISIBLE_DEVICES in `inherited`
/// ("NAME=value" strings) up to the first invalid one, as CUDA does. If the variable is not set,
/// counts the device files of NVIDIA's driver in `devices`.
int count_visible_gpus(const std::vector<std::string>& inherited,
                       const std::string& devices = "/dev");

}  // namespace tessera::internal
