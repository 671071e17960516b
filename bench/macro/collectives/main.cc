// One rank of an entry in collectives. It reads commands, one per line:
//
//   run OP BYTES N [f32|bf16]   times each of N calls, after three untimed ones, and answers with
//                               one line of JSON. BYTES is the size of the whole buffer: the one
//                               that all_reduce reduces, reduce_scatter reads and all_gather
//                               writes. `read` and `copy` are not collectives; they measure a
//                               rank's memory bandwidth while all others do the same
//   quit                        (or the end of input) ends it
#include <chrono>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <torch/torch.h>

#include "tessera/bench/macro/entry/answer.h"
#include "tessera/core/memory/copy_kernels.h"
#include "tessera/core/reduce/finite_kernels.h"
#include "tessera/examples/program/program.h"
#include "tessera/rendezvous.h"

namespace {

using Clock = std::chrono::steady_clock;
using tessera::ReduceOp;

class CollectivesEntry {
 public:
  explicit CollectivesEntry(std::shared_ptr<tessera::ProcessGroup> world)
      : world_(std::move(world)) {}

  void serve() {
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream words(line);
      std::string command, op, dtype = "f32";
      int64_t bytes = 0, calls = 0;
      words >> command;
      if (command == "quit") return;
      words >> op >> bytes >> calls;
      TORCH_CHECK(command == "run" && words, "[bench] command: got '", line,
                  "', expected 'run OP BYTES N [f32|bf16]' or 'quit'");
      words >> dtype;
      run(op, bytes, calls, dtype == "bf16" ? at::kBFloat16 : at::kFloat);
    }
  }

 private:
  /// Returns memory that the shm backend communicates without copying, and keeps it for later runs.
  at::Tensor buffer(const std::string& use, int64_t numel, at::ScalarType dtype) {
    at::Tensor& memory = buffers_[use + std::to_string(numel) + c10::toString(dtype)];
    if (!memory.defined()) {
      memory = world_->allocate(numel, dtype);
      memory.fill_(1.0);
    }
    return memory;
  }

  /// Returns this rank's part of `whole`, so that all_gather runs in place, as an engine's does.
  at::Tensor own_slice(const at::Tensor& whole) const {
    const int64_t numel = whole.numel() / world_->size();
    return whole.narrow(0, world_->rank() * numel, numel);
  }

  void call(const std::string& op, const at::Tensor& whole, const at::Tensor& part) {
    if (op == "all_reduce") {
      world_->all_reduce(whole, ReduceOp::kAvg)->wait();
    } else if (op == "reduce_scatter") {
      world_->reduce_scatter(part, whole, ReduceOp::kAvg)->wait();
    } else if (op == "all_gather") {
      world_->all_gather(whole, own_slice(whole))->wait();
    } else if (op == "read") {
      tessera::internal::count_non_finite(whole, {0, whole.numel()});
    } else if (op == "copy") {
      const at::Tensor to = buffer("copy", whole.numel(), whole.scalar_type());
      tessera::internal::copy_streaming(to.data_ptr(), whole.data_ptr(),
                                        static_cast<int64_t>(whole.nbytes()));
    } else {
      TORCH_CHECK(op == "barrier", "[bench] OP: got '", op,
                  "', expected all_reduce, reduce_scatter, all_gather, barrier, read or copy");
      world_->barrier();
    }
  }

  void run(const std::string& op, int64_t bytes, int64_t calls, at::ScalarType dtype) {
    at::Tensor whole, part;
    if (op != "barrier") {
      const int64_t part_numel =
          bytes / static_cast<int64_t>(c10::elementSize(dtype)) / world_->size();
      part = buffer("part", part_numel, dtype);
      whole = buffer("whole", part_numel * world_->size(), dtype);
    }
    for (int i = 0; i < 3; ++i) call(op, whole, part);
    std::vector<double> us;
    for (int64_t i = 0; i < calls; ++i) {
      const auto begin = Clock::now();
      call(op, whole, part);
      us.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
    }
    bench::Answer("run").add("us", us).send();
  }

  std::shared_ptr<tessera::ProcessGroup> world_;
  std::map<std::string, at::Tensor> buffers_;
};

}  // namespace

int main(int argc, char** argv) {
  return program::run(
      {.name = "macro_collectives",
       .summary = "times collectives as one rank of an entry of bench/run. Commands "
                  "on standard input: 'run OP BYTES N [f32|bf16]' (N calls of "
                  "all_reduce, reduce_scatter, all_gather, barrier, read or copy; "
                  "BYTES of the whole buffer), 'quit'.",
       .examples = {"echo run all_reduce 1048576 5 | macro_collectives"}},
      argc, argv, [] {
        at::set_num_threads(1);
        CollectivesEntry entry(tessera::init_process_group());
        bench::Answer("ready").send();
        entry.serve();
      });
}
