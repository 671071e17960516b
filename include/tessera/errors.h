#pragma once

#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

#include <c10/util/Exception.h>

/// Checks an internal invariant in builds that define TESSERA_DEBUG_CHECKS. LibTorch forces NDEBUG
/// on every file that includes it (another NDEBUG setting changes the layout of its
/// RecordFunction), so `assert` is never available.
#ifdef TESSERA_DEBUG_CHECKS
#define TESSERA_DCHECK(...) TORCH_INTERNAL_ASSERT(__VA_ARGS__)
#else
#define TESSERA_DCHECK(...) static_cast<void>(0)
#endif

namespace tessera {

/// Where a collective failed. Fields that are not known are left at their defaults.
struct CommErrorContext {
  std::string op;         ///< "all_reduce", "barrier", ...
  std::string group;      ///< name of the process group
  int64_t sequence = -1;  ///< number of the collective within its group
  int rank = -1;          ///< the rank that throws (in the group)
  std::string tag;        ///< what was communicated: a bucket, "vote", ...
};

/// Thrown if a collective failed or timed out, if a peer died or left, or if calls differ between
/// ranks. The group that threw it is poisoned (over NCCL all groups of its world): every later call
/// on it, on every rank, throws the same cause.
class CommError : public std::runtime_error {
 public:
  /// `cause` says what happened and names the rank that is to blame where it is known. what() is
  /// "[comm] <op> #<sequence> '<tag>' on group '<group>', rank <rank>: <cause>".
  CommError(CommErrorContext context, std::string cause);

  const CommErrorContext& context() const { return context_; }

  /// Returns the text without its context: equal on every rank of the group, so that a log of all
  /// ranks names one cause. Ranks of different hosts that find failures at the same moment may name
  /// different causes.
  const std::string& cause() const { return cause_; }

 private:
  CommErrorContext context_;
  std::string cause_;
};

/// An error that all ranks know of and throw in the same call, so that no rank waits: options or
/// models that differ between ranks, a checkpoint that one of them cannot read. Any other exception
/// concerns the rank that throws it.
class ErrorOnAllRanks : public c10::Error {
 public:
  explicit ErrorOnAllRanks(std::string text);
};

/// Thrown by launch() and run_threads() if a rank that they started has failed. Describes the rank
/// that failed first; what() names it and says why.
class RankError : public std::runtime_error {
 public:
  /// How the rank ended.
  struct Ending {
    int rank = 0;
    /// Exit code of the rank's process, or 128 + `signal` if a signal ended it; for a thread, what
    /// record_errors() would return.
    int exit_code = 1;
    int signal = 0;  ///< the signal that ended the rank's process; 0 if none did
    /// The exception that left the rank's body, if the rank was a thread.
    std::exception_ptr exception = nullptr;
  };
  RankError(Ending ending, const std::string& text);

  const Ending& ending() const { return ending_; }

 private:
  Ending ending_;
};

}  // namespace tessera
