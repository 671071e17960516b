#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "tessera/core/launch/rank_process.h"
#include "tessera/core/process/file_descriptor.h"
#include "tessera/tools/run/line_prefixer.h"

namespace tessera::internal {

/// One stream of a worker's output: the pipe that it comes through and the cutter of its lines.
struct WorkerStream {
  FileDescriptor pipe;
  LinePrefixer lines;

  /// Appends what the pipe holds now to `out`, at most about `limit_bytes`; never blocks. Closes
  /// the pipe and ends the last line when nobody can write to it any more.
  void read_into(Sink& out, size_t limit_bytes);
};

/// One rank's process whose stdout and stderr come through pipes.
class Worker : public RankProcess {
 public:
  /// As RankProcess::start().
  static absl::StatusOr<std::unique_ptr<Worker>> start(int rank, const RankProgram& program,
                                                       const Watcher& watcher);

  WorkerStream& out() { return out_; }
  WorkerStream& err() { return err_; }

 private:
  Worker(RankProcess process, WorkerStream out, WorkerStream err);

  WorkerStream out_;
  WorkerStream err_;
};

}  // namespace tessera::internal
