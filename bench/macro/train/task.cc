#include "tessera/bench/macro/train/task.h"

#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/numbers.h>

#include "tessera/examples/gpt/model.h"

namespace bench {
namespace {

struct GptTask {
  gpt::ModelSizes sizes;
  int64_t batch;  // sequences per rank and step
};

/// GPT-2 of 124 million parameters.
constexpr gpt::ModelSizes kGpt2 = {
    .layers = 12, .heads = 12, .width = 768, .context = 1024, .vocabulary = 50257};
/// One layer of deep-<n>, 50 million parameters. The runner adds layers until memory is full.
constexpr gpt::ModelSizes kDeep = {
    .layers = 1, .heads = 16, .width = 2048, .context = 1024, .vocabulary = 50257};

const std::map<std::string, GptTask>& gpt_tasks() {
  static const std::map<std::string, GptTask> tasks = {
      {"A", {{.layers = 8, .heads = 4, .width = 256, .context = 128, .vocabulary = 256}, 4}},
      {"S", {{.layers = 8, .heads = 4, .width = 256, .context = 64, .vocabulary = 256}, 1}},
      {"B", {{.layers = 8, .heads = 8, .width = 512, .context = 128, .vocabulary = 256}, 8}},
      {"C", {{.layers = 12, .heads = 12, .width = 768, .context = 128, .vocabulary = 8192}, 2}},
      {"gpt2-1k", {kGpt2, 1}},
      {"gpt2-16k", {kGpt2, 16}},
  };
  return tasks;
}

/// Returns the file's tokens. Token i is the number that bytes i and i + 1 form, modulo
/// `vocabulary`.
at::Tensor read_tokens(const std::string& path, int64_t vocabulary) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file),
                                std::istreambuf_iterator<char>()};
  TORCH_CHECK(bytes.size() > 4096, "[bench] --text: got ", bytes.size(), " bytes from '", path,
              "', expected a readable file of more than 4096; name another file");
  at::Tensor tokens = at::empty({static_cast<int64_t>(bytes.size()) - 1}, at::kLong);
  auto* token = tokens.mutable_data_ptr<int64_t>();
  for (size_t i = 0; i + 1 < bytes.size(); ++i) {
    const auto here = static_cast<uint8_t>(bytes[i]), next = static_cast<uint8_t>(bytes[i + 1]);
    token[i] = (int64_t{here} * 256 + next) % vocabulary;
  }
  return tokens;
}

Task make_gpt(const GptTask& task, const std::string& text, int rank, int world, int ranks) {
  auto model = std::make_shared<gpt::Gpt>(task.sizes);
  const at::Tensor tokens = read_tokens(text, task.sizes.vocabulary);
  const int64_t batch = task.batch, context = task.sizes.context;
  const int64_t starts = tokens.numel() - 1 - context;  // as many as in bench/peers
  const auto make_batch = [=](int64_t step) -> Batch {
    std::vector<at::Tensor> inputs, targets;
    for (int64_t sequence = 0; sequence < ranks * batch; ++sequence) {
      const int64_t start = ((step * world + rank) * batch + sequence) * 7919 % starts;
      inputs.push_back(tokens.narrow(0, start, context));
      targets.push_back(tokens.narrow(0, start + 1, context));
    }
    return {at::stack(inputs), at::stack(targets)};
  };
  const auto loss = [model](const Batch& batch) { return model->loss(batch.input, batch.target); };
  return {model, {}, make_batch, loss};
}

/// Makes units of ten layers each, because a unit of a single layer would have only 16 KiB.
std::vector<std::vector<std::string>> tens_of_layers(const torch::nn::Module& model) {
  std::vector<std::vector<std::string>> units;
  int64_t layers = 0;
  for (const auto& child : model.named_children()) {
    if (child.value()->parameters().empty()) continue;
    if (layers++ % 10 == 0) units.emplace_back();
    units.back().push_back(child.key());
  }
  return units;
}

Task make_mlp(int rank, int world, int ranks) {
  constexpr int64_t kLayers = 100, kWidth = 64, kBatch = 8;
  torch::nn::Sequential model;
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    if (layer > 0) model->push_back(torch::nn::ReLU());
    model->push_back(torch::nn::Linear(kWidth, kWidth));
  }
  const auto make_batch = [=](int64_t step) -> Batch {
    std::vector<at::Tensor> inputs, targets;
    for (int one = rank; one < rank + ranks; ++one) {
      torch::manual_seed(static_cast<uint64_t>(1000 + step * world + one));
      inputs.push_back(at::randn({kBatch, kWidth}));
      targets.push_back(at::randn({kBatch, kWidth}));
    }
    return {at::cat(inputs), at::cat(targets)};
  };
  const auto loss = [model](const Batch& batch) mutable {
    return at::mse_loss(model->forward(batch.input), batch.target);
  };
  return {model.ptr(), {"ten layers", &tens_of_layers}, make_batch, loss};
}

}  // namespace

Task make_task(const std::string& name, const std::string& text, int rank, int world, int ranks) {
  torch::manual_seed(1);
  if (name == "MLP") return make_mlp(rank, world, ranks);
  if (GptTask deep{kDeep, 1}; absl::StartsWith(name, "deep-") &&
                              absl::SimpleAtoi(name.substr(5), &deep.sizes.layers) &&
                              deep.sizes.layers >= 1) {
    return make_gpt(deep, text, rank, world, ranks);
  }
  const auto task = gpt_tasks().find(name);
  TORCH_CHECK(task != gpt_tasks().end(), "[bench] --model: got '", name,
              "', expected A, B, C, S, MLP, gpt2-1k, gpt2-16k or deep-<layers>");
  return make_gpt(task->second, text, rank, world, ranks);
}

}  // namespace bench
