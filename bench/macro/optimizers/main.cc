// One rank of an entry for updates of optimizers. It reads commands, one per line:
//
//   run ALGORITHM ELEMENTS N   times each of N updates of a flat fp32 parameter with ELEMENTS
//                              elements, after three untimed ones. Answers with one line of JSON:
//                              the times, and how far values have moved on average since the first
//                              update. If ALGORITHM or ELEMENTS change, it starts from new values
//   quit                       (or the end of input) ends it
#include <chrono>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <absl/flags/flag.h>
#include <torch/torch.h>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/bench/macro/optimizers/update.h"
#include "tessera/examples/program/program.h"

ABSL_FLAG(std::string, by, "tessera",
          "who updates: tessera, tessera8bit (its states in 8 bits), libtorch, or memory, which "
          "reads and writes as much and computes "
          "next to nothing");

namespace {

using Clock = std::chrono::steady_clock;

class OptimizersEntry {
 public:
  explicit OptimizersEntry(std::string by) : by_(std::move(by)) {}

  void serve() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command, algorithm;
      int64_t elements = 0, updates = 0;
      words >> command;
      if (command == "quit") return;
      words >> algorithm >> elements >> updates;
      TORCH_CHECK(command == "run" && words && elements > 0, "[bench] command: got '", line,
                  "', expected 'run ALGORITHM ELEMENTS N' or 'quit'");
      prepare(algorithm, elements);
      run(updates);
    }
  }

 private:
  void prepare(const std::string& algorithm, int64_t elements) {
    const std::string what = algorithm + " " + std::to_string(elements);
    if (what == what_) return;
    update_ = nullptr;  // frees its memory first
    update_ = bench::make_update(by_, algorithm, elements);
    what_ = what;
  }

  void run(int64_t updates) {
    for (int i = 0; i < 3; ++i) update_->run();
    std::vector<double> us;
    for (int64_t i = 0; i < updates; ++i) {
      const auto begin = Clock::now();
      update_->run();
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    bench::Answer("run").add("us", us).add("moved", update_->moved()).send();
  }

  std::string by_;
  std::string what_;
  std::unique_ptr<bench::Update> update_;
};

}  // namespace

int main(int argc, char** argv) {
  return program::run(
      {.name = "macro_optimizers",
       .summary = "times updates of optimizers as an entry of bench/run. Commands on standard "
                  "input: 'run ALGORITHM ELEMENTS N' (N updates by adamw, adam, sgd with momentum, "
                  "lion, adagrad or rmsprop), 'quit'.",
       .examples = {"echo run adamw 16777216 5 | macro_optimizers --by libtorch"}},
      argc, argv, [] {
        const std::string by = absl::GetFlag(FLAGS_by);
        bench::require_maker(by);
        at::set_num_threads(1);
        bench::Answer("ready").send();
        OptimizersEntry(by).serve();
      });
}
