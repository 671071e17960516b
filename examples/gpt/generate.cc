#include "tessera/examples/gpt/generate.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>

namespace gpt {

std::string generate(Gpt& model, const std::string& prompt, const Sampling& sampling) {
  const torch::NoGradGuard no_grad;
  at::Generator generator = at::detail::createCPUGenerator(sampling.seed);
  std::string text = prompt.empty() ? "\n" : prompt;
  const auto context = static_cast<size_t>(model.sizes().context);
  const at::Device device = model.parameters().front().device();
  for (int64_t i = 0; i < sampling.new_bytes; ++i) {
    std::vector<int64_t> seen;
    for (size_t at = text.size() - std::min(text.size(), context); at < text.size(); ++at) {
      seen.push_back(static_cast<unsigned char>(text[at]));
    }
    const at::Tensor logits = model.forward(torch::tensor(seen, at::kLong).unsqueeze(0).to(device))
                                  .select(1, -1)
                                  .squeeze(0)
                                  .to(at::kCPU, at::kFloat);
    const at::Tensor next =
        sampling.temperature > 0
            ? at::multinomial(at::softmax(logits / sampling.temperature, 0), 1, false, generator)
            : logits.argmax();
    text.push_back(static_cast<char>(next.item<int64_t>()));
  }
  return prompt.empty() ? text.substr(1) : text;
}

std::string printable(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if ((c >= ' ' && c <= '~') || c == '\n' || c == '\t') {
      result.push_back(c);
    } else {
      char code[8];
      std::snprintf(code, sizeof(code), "\\x%02x", static_cast<unsigned>(c) & 0xffu);
      result += code;
    }
  }
  return result;
}

}  // namespace gpt
