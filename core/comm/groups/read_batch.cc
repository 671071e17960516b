#include "tessera/core/comm/groups/read_batch.h"

#include <exception>

namespace tessera::internal {

void ReadBatch::wait() {
  std::exception_ptr first;
  for (const auto& read : std::exchange(reads_, {})) {
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
