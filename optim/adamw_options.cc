#include "tessera/optim/adamw_options.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>

namespace tessera {

namespace {

std::string to_text(double value) {
  std::array<char, 32> text;
  // The shortest form that reads back as the same value.
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (std::strtod(text.data(), nullptr) == value) break;
  }
  return text.data();
}

}  // namespace

std::array<double, kAdamwNames.size()> adamw_values(const torch::optim::AdamWOptions& options) {
  const auto [beta1, beta2] = options.betas();
  return {options.lr(), beta1, beta2, options.eps(), options.weight_decay()};
}

void set_adamw_values(torch::optim::AdamWOptions& options,
                      const std::array<double, kAdamwNames.size()>& values) {
  const auto [lr, beta1, beta2, eps, weight_decay] = values;
  options.lr(lr).betas({beta1, beta2}).eps(eps).weight_decay(weight_decay);
}

std::vector<std::string> adamw_problems(const std::string& subject,
                                        const torch::optim::AdamWOptions& options) {
  std::vector<std::string> problems;
  const auto values = adamw_values(options);
  for (size_t i = 0; i < values.size(); ++i) {
    const std::string name = kAdamwNames[i];
    const bool is_beta = name == "beta1" || name == "beta2";
    // Written so that NaN is out of range.
    const bool is_allowed =
        values[i] >= 0.0 && (is_beta ? values[i] < 1.0 : std::isfinite(values[i]));
    if (is_allowed) continue;
    problems.push_back("[optim] " + subject + ": " + name + ": got " + to_text(values[i]) +
                       (is_beta ? ", expected 0 <= " + name + " < 1"
                                : std::string(", expected a finite number, at least 0")));
  }
  if (options.amsgrad()) {
    problems.push_back("[optim] " + subject +
                       ": amsgrad: got true, expected false; AMSGrad is not available yet");
  }
  return problems;
}

std::string to_string(const torch::optim::AdamWOptions& options) {
  std::string text = "AdamW";
  const auto values = adamw_values(options);
  for (size_t i = 0; i < values.size(); ++i) {
    text += std::string(" ") + kAdamwNames[i] + " " + to_text(values[i]);
  }
  return text + (options.amsgrad() ? " amsgrad" : "");
}

}  // namespace tessera
