#include "tessera/tools/run/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include <array>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

struct Pipe {
  FileDescriptor read_end;
  FileDescriptor write_end;

  bool open() {
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return false;
    read_end = FileDescriptor(ends[0]);
    write_end = FileDescriptor(ends[1]);
    return true;
  }
};

}  // namespace

void WorkerStream::read_into(Sink& out, size_t limit_bytes) {
  std::array<char, 65536> bytes;
  size_t total = 0;
  while (pipe.is_open() && total < limit_bytes) {
    const ssize_t count = read(pipe.get(), bytes.data(), bytes.size());
    if (count > 0) {
      const std::string_view text(bytes.data(), static_cast<size_t>(count));
      log.append(text);
      if (is_shown) lines.add(text, LinePrefixer::Clock::now(), out);
      total += static_cast<size_t>(count);
    } else if (count < 0 && errno == EINTR) {
      continue;
    } else if (count < 0 && errno == EAGAIN) {
      return;
    } else {
      lines.finish(out);
      pipe.close();
    }
  }
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::start(int rank, WorkerProgram program,
                                                      const Watcher& watcher) {
  Pipe out, err;
  if (!out.open() || !err.open()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot start ", program.name, ": no pipe: ", strerror(errno), " (see ulimit -n)"));
  }
  for (const Pipe* pipe : {&out, &err}) fcntl(pipe->read_end.get(), F_SETFL, O_NONBLOCK);
  auto process =
      RankProcess::start(rank, program, watcher, out.write_end.get(), err.write_end.get());
  if (!process.ok()) return process.status();
  const auto stream = [&program](FileDescriptor pipe, size_t number) {
    return WorkerStream{std::move(pipe), LinePrefixer(program.prefix),
                        std::move(program.logs[number]), program.is_shown[number]};
  };
  return std::unique_ptr<Worker>(new Worker(*std::move(process), stream(std::move(out.read_end), 0),
                                            stream(std::move(err.read_end), 1)));
}

Worker::Worker(RankProcess process, WorkerStream out, WorkerStream err)
    : RankProcess(std::move(process)), out_(std::move(out)), err_(std::move(err)) {}

}  // namespace tessera::internal
