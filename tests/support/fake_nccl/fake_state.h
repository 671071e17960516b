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
  int questions = 0;                          // that remain until `waiting` is launched
  std::deque<std::function<bool()>> waiting;  // each returns whether it is over
  uint64_t collectives = 0;
  uint64_t splits = 0;
  int cta_policy = 0;
  int windows = 0;  // begun
  struct Registered {
    const char* data = nullptr;
    size_t bytes = 0;
    int window = -1;  // -1: for buffers
  };
  std::map<int64_t, Registered> registered;  // by handle
};

}  // namespace tessera::internal::nccl

namespace tessera::internal::testing {

using nccl::OpaqueComm;
using nccl::Result;

/// Everything, behind one lock. Never destroyed: stream threads may outlive main().
struct State {
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by id
  std::vector<FakeCall> calls;
  std::map<std::string, int> failing;                    // next call of a function
  std::map<std::pair<std::string, int>, Result> broken;  // communicators
  std::set<OpaqueComm*> live;
  int ids = 0;
  int groups = 0;
  int questions = 0;
  bool held = false;
  std::map<const char*, size_t> memory;  // from ncclMemAlloc
  std::vector<std::string> complaints;
  int64_t handles = 0;
  bool refuses_windows = false;
};

State& state();

/// Under the lock: the result that a test has asked for, once.
bool takes_failure(const char* function, Result& result);
/// Under the lock: what is to be done when somebody asks whether the communicator is ready; true
/// when it is over.
Result begin(OpaqueComm& comm, std::function<bool()> step);
/// Under the lock. What keeps a communicator, for work on streams.
std::shared_ptr<OpaqueComm> hold_of(OpaqueComm* comm);
/// Under the lock.
void record(const char* function, const OpaqueComm* comm);
/// Under the lock.
WindowPlace place_of(const OpaqueComm& comm, const void* data);
/// Under the lock: the end of a communicator, which forgets its memory.
void forget_memory(OpaqueComm& comm, bool is_abort);

}  // namespace tessera::internal::testing
