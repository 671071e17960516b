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
  int group = 0;              ///< number of the outermost ncclGroupStart around it; 0: none
  bool is_in_window = false;  ///< a collective in which peers access memory in a window
  bool is_run_by_copy_engine = false;  ///< both sides are in windows, as NCCL 2.28 requires
};

/// The tests' view of libnccl_fake.so, and its controls. All state is process-wide, so tests that
/// use it begin with reset() and run one after the other.
class FakeNccl {
 public:
  virtual ~FakeNccl() = default;

  /// Forgets calls and injections. Communicators stay.
  virtual void reset() = 0;
  virtual std::vector<FakeCall> calls() = 0;
  /// Communicators that were made and not yet destroyed or aborted.
  virtual int live_communicators() = 0;

  /// A caller's mistakes with memory, as text; reset() clears them.
  virtual std::vector<std::string> complaints() = 0;
  /// Blocks from ncclMemAlloc that are not yet freed.
  virtual int live_memory() = 0;
  /// As on GPUs without symmetric memory: windows stay null.
  virtual void refuse_windows() = 0;

  /// Calls stay kInProgress until ncclCommGetAsyncError was called this often; only then is their
  /// work put on the stream.
  virtual void set_questions_before_launch(int count) = 0;
  /// Collectives for which all ranks have arrived do not end before release().
  virtual void hold() = 0;
  /// Aborts do not return before release().
  virtual void hold_aborts() = 0;
  virtual void release() = 0;
  /// From now on the communicator of this name and rank reports `result`.
  virtual void fail(const std::string& communicator, int rank, int result) = 0;
  /// The next call of `function` returns `result` and does nothing.
  virtual void fail_next(const std::string& function, int result) = 0;
};

}  // namespace tessera::internal::testing

/// Looked up in the loaded library.
extern "C" tessera::internal::testing::FakeNccl* tessera_fake_nccl();
