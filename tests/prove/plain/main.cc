// Trains each task in one process, on all rows of each step, with LibTorch only: no part of Tessera
// is linked. Sharded training must give the same results.
//
//   prove_reference <folder>
//
// For each task: <task>.start and <task>.end (parameters before and after), <task>.data (the
// training data, for other programs), each as .bin and .txt (tensor_file.h); <task>.steps (losses);
// hinge.decisions (HingeModel::closest_decision).
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <limits>
#include <string>

#include <torch/torch.h>

#include "tessera/tests/prove/plain/hinge_model.h"
#include "tessera/tests/prove/plain/step_log.h"
#include "tessera/tests/prove/plain/task.h"
#include "tessera/tests/prove/plain/tensor_file.h"

namespace prove {
namespace {

void write_data(const Task& task, const std::string& stem) {
  NamedTensors tensors;
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = task.batch(step);
    tensors.emplace_back("input" + std::to_string(step), batch.input);
    tensors.emplace_back("target" + std::to_string(step), batch.target);
  }
  write_tensors(stem + ".data", tensors);
}

void train(const Task& task, const std::string& stem) {
  const auto model = task.make_model();
  write_tensors(stem + ".start", parameters_of(*model));
  torch::optim::AdamW optimizer(model->parameters(), task.optimizer);
  StepLog log(stem + ".steps");
  double closest = std::numeric_limits<double>::infinity();
  for (int64_t step = 0; step < kSteps; ++step) {
    const Batch batch = task.batch(step);
    if (auto* hinge = dynamic_cast<HingeModel*>(model.get())) {
      closest = std::min(closest, hinge->closest_decision(batch));
    }
    optimizer.zero_grad();
    const at::Tensor loss = model->loss(batch) * (1.0 / kRows);
    loss.backward();
    optimizer.step();
    log.add(loss.item<double>());
  }
  write_tensors(stem + ".end", parameters_of(*model));
  if (task.name == "hinge") std::ofstream(stem + ".decisions") << closest << '\n';
}

void run(const std::string& folder) {
  for (const Task& task : tasks()) {
    const std::string stem = folder + "/" + task.name;
    write_data(task, stem);
    train(task, stem);
  }
}

}  // namespace
}  // namespace prove

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "prove_reference: got %d arguments, expected a folder to write to\n",
                 argc - 1);
    return 2;
  }
  try {
    prove::run(argv[1]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prove_reference: %s\n", error.what());
    return 1;
  }
}
