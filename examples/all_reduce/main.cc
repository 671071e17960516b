// The smallest job: every rank contributes a number, all print the sum.
//
//   build/release/bin/all_reduce
//   tessera-run --standalone --nproc-per-node 3 build/release/bin/all_reduce
//
// Expected output of the second, in any order:
//
//   rank 0 of 3 (shm): 1 + ... + 3 = 6
//   rank 1 of 3 (shm): 1 + ... + 3 = 6
//   rank 2 of 3 (shm): 1 + ... + 3 = 6
#include <cstdio>
#include <exception>
#include <string>

#include "tessera/rendezvous.h"

namespace {

void run() {
  auto world = tessera::init_process_group();
  // Memory that the backend moves without copying it first; any contiguous CPU tensor works.
  at::Tensor number = world->allocate(1, at::kLong);
  number.mutable_data_ptr<int64_t>()[0] = world->rank() + 1;
  world->all_reduce(number, tessera::ReduceOp::kSum, "number")->wait();
  std::printf("rank %d of %d (%s): 1 + ... + %d = %lld\n", world->rank(), world->size(),
              std::string(world->backend()).c_str(), world->size(),
              static_cast<long long>(number.const_data_ptr<int64_t>()[0]));
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "all_reduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
