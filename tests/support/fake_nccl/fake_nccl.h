#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::internal::testing {

/// One call into the fake library, in the order in which all threads made them.
struct FakeCall {
  std::string function;      ///< "ncclAllReduce", ...
  std::string communicator;  ///< the commName it was made with
  int rank = -1;             ///< in that communicator
  const void* stream = nullptr;
  size_t numel = 0;
  int dtype = -1;
  int op = -1;
  int group = 0;              ///< number of the outermost ncclGroupStart around it; 0 for none
  bool is_in_window = false;  ///< a collective whose peers reach memory in a window
  bool is_run_by_copy_engine = false;  ///< as NCCL 2.28 chooses it: both sides in windows
};

/// What a test sees and steers of libnccl_fake.so. Everything is process-wide, so tests that use it
/// begin with reset() and run one after the other.
class FakeNccl {
 public:
  virtual ~FakeNccl() = default;

  /// Forgets calls and injections. Communicators stay.
  virtual void reset() = 0;
  virtual std::vector<FakeCall> calls() = 0;
  /// Made, and not yet destroyed or aborted.
  virtual int live_communicators() = 0;

  /// What a caller has done wrong with memory, in words; forgotten by reset().
  virtual std::vector<std::string> complaints() = 0;
  /// From ncclMemAlloc, and not yet freed.
  virtual int live_memory() = 0;
  /// GPUs without symmetric memory: windows stay null.
  virtual void refuse_windows() = 0;

  /// Calls stay kInProgress for this many questions by ncclCommGetAsyncError; only then is their
  /// work on the stream.
  virtual void set_questions_before_launch(int count) = 0;
  /// Collectives whose ranks have all come do not end before release().
  virtual void hold() = 0;
  virtual void release() = 0;
  /// The communicator of this name and rank reports `result` from now on.
  virtual void fail(const std::string& communicator, int rank, int result) = 0;
  /// The next call of `function` returns `result` and does nothing.
  virtual void fail_next(const std::string& function, int result) = 0;
};

}  // namespace tessera::internal::testing

/// Looked up in the library that is loaded.
extern "C" tessera::internal::testing::FakeNccl* tessera_fake_nccl();
