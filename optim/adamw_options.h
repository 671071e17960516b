#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/optim/adamw.h>

namespace tessera {

/// AdamW's hyper-parameters in a fixed order, for tables, comparisons and messages.
inline constexpr std::array<const char*, 5> kAdamwNames = {"lr", "beta1", "beta2", "eps",
                                                           "weight_decay"};
std::array<double, kAdamwNames.size()> adamw_values(const torch::optim::AdamWOptions& options);
/// The other way round; amsgrad is left as it is.
void set_adamw_values(torch::optim::AdamWOptions& options,
                      const std::array<double, kAdamwNames.size()>& values);

/// What is out of range in `options`, one line each "[optim] <subject>: <name>: got X, expected Y";
/// none if all is well. amsgrad, which is not available yet, is refused here.
std::vector<std::string> adamw_problems(const std::string& subject,
                                        const torch::optim::AdamWOptions& options);

/// "AdamW lr 0.001 beta1 0.9 ..." with all digits, so that equal text means equal options.
std::string to_string(const torch::optim::AdamWOptions& options);

}  // namespace tessera
