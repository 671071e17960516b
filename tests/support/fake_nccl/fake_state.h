#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/tests/support/fake_nccl/clique.h"
#include "tessera/tests/support/fake_nccl/fake_nccl.h"

namespace tessera::internal::nccl {

/// One rank's communicator.
struct OpaqueComm {
  std::string name;
  int rank = 0;
  std::shared_ptr<testing::Clique> clique;
  bool aborted = false;
  int running = 0;                            // kernels that occupy the device
  int questions = 0;                          // polls until `waiting` is launched
  std::deque<std::function<bool()>> waiting;  // each returns true when it is done
  uint64_t collectives = 0;
  uint64_t splits = 0;
  int cta_policy = 0;
  int windows = 0;  // windows whose registration has begun
  struct Registered {
    const char* data = nullptr;
    size_t bytes = 0;
    int window = -1;  // -1: registered as a buffer, not as a window
  };
  std::map<int64_t, Registered> registered;  // by handle
};

}  // namespace tessera::internal::nccl

namespace tessera::internal::testing {

using nccl::OpaqueComm;
using nccl::Result;

/// The whole state, behind one lock. Never destroyed: stream threads may outlive main().
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by id
  std::vector<FakeCall> calls;
  std::map<std::string, int> failing;                    // results for the next call of a function
  std::map<std::pair<std::string, int>, Result> broken;  // communicators
  std::set<OpaqueComm*> live;
  int ids = 0;
  int groups = 0;
  int questions = 0;
  bool held = false;
  bool aborts_held = false;
  std::map<const char*, size_t> memory;  // from ncclMemAlloc
  std::vector<std::string> complaints;
  int64_t handles = 0;
  bool refuses_windows = false;
};

State& state();

/// Under the lock: returns true, once, if a test asked for a failure, and sets `result`.
bool takes_failure(const char* function, Result& result);
/// Under the lock: adds a step that runs when a caller polls the communicator. The step returns
/// true when it is done.
Result begin(OpaqueComm& comm, std::function<bool()> step);
/// Under the lock: returns what keeps a communicator alive, for work on streams.
std::shared_ptr<OpaqueComm> hold_of(OpaqueComm* comm);
/// Under the lock: adds a call to State::calls.
void record(const char* function, const OpaqueComm* comm);
/// Under the lock: returns the place of `data` in the communicator's windows.
WindowPlace place_of(const OpaqueComm& comm, const void* data);
/// Under the lock: ends a communicator, which forgets its memory.
void forget_memory(OpaqueComm& comm, bool is_abort);

}  // namespace tessera::internal::testing
