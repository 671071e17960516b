// One rank of an entry for updates by Muon and the work that they are compared with. It reads
// commands, one per line:
//
//   run muon WIDTH N   times each of N updates, after an untimed one. Answers with one line of
//                      JSON: the times, the part of each that whole matrices took, and how far
//                      values have moved on average since the first update. Later commands cannot
//                      change WIDTH
//   quit               (or the end of input) ends it
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <absl/flags/flag.h>
#include <torch/torch.h>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/bench/macro/muon/work.h"
#include "tessera/examples/program/program.h"
#include "tessera/strategy.h"

ABSL_FLAG(std::string, by, "tessera",
          "what is timed: tessera, an update; iterations, the Newton-Schulz iterations in it; or "
          "products, some products of matrices in each process by itself");
ABSL_FLAG(tessera::Strategy, strategy, tessera::Strategy::kDdp, "what is split");
ABSL_FLAG(int, threads, 1, "so many threads compute");
ABSL_FLAG(int64_t, updates, 0, "make so many updates at width 24 without being asked");

namespace {

void run(bench::Work& work, int64_t updates) {
  work.run();
  std::vector<double> us, transforms_us;
  for (int64_t i = 0; i < updates; ++i) {
    const bench::Work::Times times = work.run();
    us.push_back(times.us);
    transforms_us.push_back(times.transforms_us);
  }
  bench::Answer("run")
      .add("us", us)
      .add("transforms_us", transforms_us)
      .add("moved", work.moved())
      .send();
}

void serve(const std::string& by) {
  std::unique_ptr<bench::Work> work;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, algorithm;
    int64_t width = 0, updates = 0;
    words >> command;
    if (command == "quit") return;
    words >> algorithm >> width >> updates;
    TORCH_CHECK(command == "run" && algorithm == "muon" && words && width > 0,
                "[bench] command: got '", line, "', expected 'run muon WIDTH N' or 'quit'");
    if (work == nullptr) work = bench::make_work(by, absl::GetFlag(FLAGS_strategy), width);
    run(*work, updates);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return program::run(
      {.name = "macro_muon",
       .summary =
           "times updates by Muon as one rank of an entry of bench/run. Commands on standard "
           "input: 'run muon WIDTH N' (N updates of the matrices of two blocks of a GPT), "
           "'quit'.",
       .examples = {"echo run muon 384 3 | macro_muon --by iterations"}},
      argc, argv, [] {
        const std::string by = absl::GetFlag(FLAGS_by);
        const int threads = absl::GetFlag(FLAGS_threads);
        bench::require_kind_of_work(by);
        if (threads < 1) throw program::UsageError("--threads: expected at least 1");
        at::set_num_threads(threads);
        bench::Answer("ready").send();
        if (const int64_t updates = absl::GetFlag(FLAGS_updates); updates > 0) {
          run(*bench::make_work(by, absl::GetFlag(FLAGS_strategy), /*width=*/24), updates);
        } else {
          serve(by);
        }
      });
}
