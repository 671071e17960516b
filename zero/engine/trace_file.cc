#include "tessera/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/unsupported_call.h"
#include "tessera/core/sched/chrome_events.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

/// A file that appears under its name when it is complete. Keeps the first error as problem();
/// calls after that error do nothing.
class PendingFile {
 public:
  explicit PendingFile(std::string path) : path_(std::move(path)) { open(); }

  ~PendingFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;

  void append(std::string_view text) {
    while (problem_.empty() && !text.empty()) {
      const ssize_t written = ::write(fd_, text.data(), text.size());
      if (written >= 0) {
        text.remove_prefix(static_cast<size_t>(written));
      } else if (errno != EINTR) {
        fail(std::strerror(errno));
      }
    }
  }

  void commit() {
    if (!problem_.empty()) return;
    // Some file systems report only now that there is no space, and some have no fsync.
    if (!temporary_.empty() && ::fsync(fd_) != 0 && !is_unsupported(errno)) {
      return fail(std::strerror(errno));
    }
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) return fail(std::strerror(errno));
    if (temporary_.empty()) return;
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fail(std::strerror(errno));
    temporary_.clear();
  }

  const std::string& problem() const { return problem_; }

 private:
  // Opens a temporary file beside path_, which commit() renames to path_. So a symbolic link at
  // path_ is replaced and not followed: any user who may write to the folder may have made it. A
  // character device, such as /dev/null, is opened itself.
  void open() {
    if (path_.empty()) return fail("the name is empty");
    struct stat status;
    const bool exists = ::lstat(path_.c_str(), &status) == 0;
    if (exists && S_ISCHR(status.st_mode)) return open_device();
    if (exists && !S_ISREG(status.st_mode)) {
      if (!S_ISLNK(status.st_mode)) return fail("it exists and is not a file");
      // Refuses a link to a device or a pipe, such as /dev/stdout: if root runs this, rename()
      // would replace the link.
      if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
        return fail("it is a link to something that is not a file");
      }
    }
    // mkostemp() opens with O_EXCL, which follows no link, and mode 0600.
    std::string name = path_ + ".XXXXXX";
    fd_ = ::mkostemp(name.data(), O_CLOEXEC);
    if (fd_ < 0) return fail(std::strerror(errno));
    temporary_ = std::move(name);
  }

  void open_device() {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
    if (fd_ < 0) return fail(std::strerror(errno));
    struct stat status;
    if (::fstat(fd_, &status) != 0 || !S_ISCHR(status.st_mode)) fail("it has just been replaced");
  }

  void fail(std::string_view reason) {
    problem_ = absl::StrCat("cannot write '", path_, "': ");
    problem_ += reason;
    problem_ += "; name a file that this rank can write";
  }

  std::string path_;
  std::string temporary_;
  std::string problem_;
  int fd_ = -1;
};

/// Returns the earliest `first_ns` of any rank, so that times in the file are small and exact.
int64_t common_origin(ProcessGroup& group, int64_t first_ns) {
  HostAllGather all_gather(group, 1);
  all_gather.mine()[0] = first_ns;
  all_gather.exchange("trace");
  int64_t earliest_ns = first_ns;
  for (int rank = 0; rank < group.size(); ++rank) {
    earliest_ns = std::min(earliest_ns, all_gather.of(rank)[0]);
  }
  return earliest_ns;
}

}  // namespace

void write_trace(ProcessGroup& group, const Trace& trace, const std::string& path) {
  std::optional<PendingFile> file;  // on rank 0
  if (group.rank() == 0) file.emplace(path);
  const auto refuse_if_failed = [&] {
    refuse_on_all_ranks(group, file ? std::string_view(file->problem()) : "", "trace");
  };
  refuse_if_failed();

  ChromeEvents events(trace, group.rank());
  const int64_t origin_ns = common_origin(group, events.first_ns());
  if (file) file->append(kChromeTraceHead);
  std::string_view separator;
  for (;;) {
    // A rank that cannot write takes part to the end, because the others are in this collective.
    const std::vector<std::string> pieces =
        group.all_gather_bytes(events.next(origin_ns, kPieceBytes), "trace");
    if (std::all_of(pieces.begin(), pieces.end(), [](const auto& p) { return p.empty(); })) break;
    if (!file) continue;
    for (const std::string& piece : pieces) {
      if (piece.empty()) continue;
      file->append(separator);
      file->append(piece);
      separator = ",\n";
    }
  }
  if (file) {
    file->append(kChromeTraceTail);
    file->commit();
  }
  refuse_if_failed();
}

void write_trace(Engine& engine, const std::string& path) {
  const Trace* trace = trace_of(engine);
  TORCH_CHECK(trace != nullptr,
              "[trace] write_trace: got an engine that records nothing, expected one made with "
              "Options::trace; set it");
  write_trace(engine.group(), *trace, path);
}

}  // namespace tessera
