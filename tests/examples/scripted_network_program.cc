// Writes the same as examples/port/torchscript/export.py without Python: a scripted network for
// MNIST made of modules, with parameters (one of them frozen) and a buffer.
//
//   scripted_network_program <file>
#include <string>

#include <torch/script.h>
#include <torch/torch.h>

namespace {

torch::jit::Module module_called(const std::string& name) {
  torch::jit::Module module(name);
  module.register_attribute("training", c10::BoolType::get(), true);
  return module;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  torch::manual_seed(3);
  torch::jit::Module features = module_called("Features");
  const torch::nn::Conv2d conv(torch::nn::Conv2dOptions(1, 8, 5).stride(2));
  features.register_parameter("weight", conv->weight, /*is_buffer=*/false);
  features.register_parameter("bias", conv->bias, /*is_buffer=*/false);
  features.register_buffer("shift", torch::full({8, 1, 1}, 0.1));
  features.define(R"(
    def forward(self, x):
        return torch.relu(torch.conv2d(x, self.weight, self.bias, [2, 2]) + self.shift).flatten(1)
  )");
  torch::jit::Module network = module_called("Network");
  network.register_module("features", features);
  const torch::nn::Linear hidden(8 * 12 * 12, 32);
  const torch::nn::Linear last(32, 10);
  network.register_parameter("hidden", hidden->weight, /*is_buffer=*/false);
  network.register_parameter("last", last->weight, /*is_buffer=*/false);
  network.register_parameter("frozen", last->bias.detach(), /*is_buffer=*/false);
  network.define(R"(
    def forward(self, x):
        x = torch.relu(self.features.forward(x).matmul(self.hidden.t()))
        return x.matmul(self.last.t()) + self.frozen
  )");
  network.save(argv[1]);
}
