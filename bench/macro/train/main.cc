// One rank of a training contestant. Steered line by line:
//
//   steps N   trains N steps and answers with one line of JSON
//   quit      (or the end of input) ends it
//
// With --steps it trains without being asked, answers once and ends.
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <iostream>
#include <sstream>

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>

#include "tessera/bench/macro/contestant/answer.h"
#include "tessera/bench/macro/contestant/process_numbers.h"
#include "tessera/bench/macro/train/task.h"
#include "tessera/bench/macro/train/trainer.h"
#include "tessera/core/comm/rendezvous.h"
#include "tessera/core/error_text.h"

ABSL_FLAG(std::string, model, "A", "A, B, C, S or MLP");
ABSL_FLAG(std::string, strategy, "ddp",
          "local, ddp, zero1, zero2, zero3, zero3-keep, zero2-in-backward or zero3-in-backward");
ABSL_FLAG(std::string, text, "", "file that the GPTs learn from");
ABSL_FLAG(int64_t, steps, 0, "train this many steps without being asked");
ABSL_FLAG(std::string, trace, "", "file for a trace; empty: none");

namespace {

using Clock = std::chrono::steady_clock;

class Contest {
 public:
  Contest(bench::Trainer& trainer, std::function<bench::Batch(int64_t)> make_batch)
      : trainer_(trainer), make_batch_(std::move(make_batch)) {}

  void steps(int64_t count) {
    std::vector<double> ms, losses;
    const auto before = bench::ProcessNumbers::now();
    for (int64_t i = 0; i < count; ++i) {
      const bench::Batch batch = make_batch_(done_++);
      const auto begin = Clock::now();
      losses.push_back(trainer_.step(batch));
      ms.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    const auto after = bench::ProcessNumbers::now();
    bench::Answer("steps")
        .add("ms", ms)
        .add("loss", losses)
        .add("cpu_ms", after.cpu_ms - before.cpu_ms)
        .add("minor_faults", after.minor_faults - before.minor_faults)
        .add("involuntary_switches", after.involuntary_switches - before.involuntary_switches)
        .add("private_kib", bench::private_kib())
        .send();
  }

  /// Until the input ends.
  void obey() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command;
      int64_t count = 0;
      words >> command;
      if (command == "quit") return;
      TORCH_CHECK(command == "steps" && words >> count && count > 0, "[bench] command: got '", line,
                  "', expected 'steps N' or 'quit'");
      steps(count);
    }
  }

 private:
  bench::Trainer& trainer_;
  std::function<bench::Batch(int64_t)> make_batch_;
  int64_t done_ = 0;
};

void compete() {
  auto world = tessera::init_process_group();
  at::set_num_threads(1);
  bench::Answer("idle").add("private_kib", bench::private_kib()).send();
  bench::Task task = bench::make_task(absl::GetFlag(FLAGS_model), absl::GetFlag(FLAGS_text),
                                      world->rank(), world->size());
  int64_t parameters = 0;
  for (const at::Tensor& parameter : task.model->parameters()) parameters += parameter.numel();
  const auto make_batch = task.batch;
  const std::string trace = absl::GetFlag(FLAGS_trace);
  const auto trainer =
      bench::make_trainer(absl::GetFlag(FLAGS_strategy), std::move(task), !trace.empty(), world);
  bench::Answer("ready").add("parameters", parameters).send();

  Contest contest(*trainer, make_batch);
  if (const int64_t steps = absl::GetFlag(FLAGS_steps); steps > 0) {
    contest.steps(steps);
  } else {
    contest.obey();
  }
  if (!trace.empty()) trainer->write_trace(trace);
}

}  // namespace

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  try {
    compete();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "macro_train: %s\n", tessera::error_text(error).c_str());
    return 1;
  }
  return 0;
}
