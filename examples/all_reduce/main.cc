// The smallest job: every rank contributes a number, all print the sum.
//
//   build/release/bin/all_reduce
//   tessera-run --standalone --nproc-per-node 3 build/release/bin/all_reduce
//
// Expected output of the second command, in any order:
//
//   rank 0 of 3 (shm): 1 + ... + 3 = 6
//   rank 1 of 3 (shm): 1 + ... + 3 = 6
//   rank 2 of 3 (shm): 1 + ... + 3 = 6
#include <cstdio>
#include <string>

#include "tessera/examples/program/program.h"
#include "tessera/rendezvous.h"

namespace {

void add_up() {
  auto world = tessera::init_process_group();
  // allocate() returns memory that the backend sends without copying it first. Any other contiguous
  // CPU tensor works too.
  at::Tensor number = world->allocate(1, at::kLong);
  number.mutable_data_ptr<int64_t>()[0] = world->rank() + 1;
  world->all_reduce(number, tessera::ReduceOp::kSum, "number")->wait();
  std::printf("rank %d of %d (%s): 1 + ... + %d = %lld\n", world->rank(), world->size(),
              std::string(world->backend()).c_str(), world->size(),
              static_cast<long long>(number.const_data_ptr<int64_t>()[0]));
}

}  // namespace

int main(int argc, char** argv) {
  return program::run({.name = "all_reduce",
                       .summary = "adds up the numbers of all ranks.",
                       .examples = {"tessera-run --standalone --nproc-per-node 3 all_reduce"}},
                      argc, argv, add_up);
}
