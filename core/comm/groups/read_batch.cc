#include "tessera/core/comm/groups/read_batch.h"

#include <chrono>
#include <exception>

namespace tessera::internal {

void ReadBatch::wait() {
  std::exception_ptr first;
  const auto reads = std::exchange(reads_, {});
  // Other ranks of the host may wait for any of them, with patience once this rank does, too.
  for (const auto& read : reads) read->wait_for(std::chrono::milliseconds(0));
  for (const auto& read : reads) {
    try {
      read->wait();
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

ReadBatch::~ReadBatch() {
  try {
    wait();
  } catch (...) {  // what made the caller leave says more
  }
}

}  // namespace tessera::internal
