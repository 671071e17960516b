#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "tessera/core/launch/rank_process.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/tools/run/line_prefixer.h"
#include "tessera/tools/run/log_file.h"

namespace tessera::internal {

/// One output stream of a worker: the pipe from which it is read, and its line prefixer.
struct WorkerStream {
  FileDescriptor pipe;
  LinePrefixer lines;
  LogFile log;           ///< receives all output, unchanged
  bool is_shown = true;  ///< true if the lines also go to a sink

  /// Appends what the pipe holds now to `out` and the log, at most about `limit_bytes`; never waits
  /// for the worker. Once nobody can write to the pipe any more, closes it and ends the last line.
  void read_into(Sink& out, size_t limit_bytes);
};

/// The program of a worker, and where its output goes.
struct WorkerProgram : RankProgram {
  /// The prefix of each output line.
  std::string prefix = {};
  /// The log files of stdout and stderr.
  std::array<LogFile, 2> logs = {};
  std::array<bool, 2> is_shown = {true, true};
};

/// One rank's process whose stdout and stderr come through pipes.
class Worker : public RankProcess {
 public:
  /// See RankProcess::start().
  static absl::StatusOr<std::unique_ptr<Worker>> start(int rank, WorkerProgram program,
                                                       const Watcher& watcher);

  WorkerStream& out() { return out_; }
  WorkerStream& err() { return err_; }

 private:
  Worker(RankProcess process, WorkerStream out, WorkerStream err);

  WorkerStream out_;
  WorkerStream err_;
};

}  // namespace tessera::internal
