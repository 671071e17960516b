#include "tessera/core/process/job_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {
namespace {

constexpr const char* kName = "tessera-job";
/// The version of the layout of a page. Change it with the layout, because processes may use
/// different versions of Tessera.
constexpr uint64_t kVersion = 0x7465737365726102;

/// Returns true if nobody can shrink the file. (A process that reads a mapping of a file is killed
/// if the file was shrunk.)
bool is_sealed(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0;
}

}  // namespace

struct alignas(64) JobPage::Header {
  uint64_t nonce;
  std::atomic<int64_t> saved_step;
  uint64_t version;  // of the page's layout
  int32_t ranks;
  JobOutline outline;
};

struct alignas(64) JobPage::Record {
  enum State : uint32_t { kNone, kWriting, kThere };

  std::atomic<uint32_t> is_open;
  std::atomic<uint32_t> state;
  int32_t culprit;
  std::atomic<uint32_t> length;  // of the complete part of `text`; more may be written after it
  int64_t when_ns;
  char text[kLongestNote_bytes];
  std::atomic<int32_t> pid;
  std::atomic<int32_t> own_pid;
  std::atomic<uint32_t> has_ended;
  std::atomic<int32_t> wait_status;
  RankProgress progress;
};

int64_t JobPage::bytes(int ranks) {
  return static_cast<int64_t>(sizeof(Header)) +
         int64_t{ranks} * static_cast<int64_t>(sizeof(Record));
}

JobPage::Header& JobPage::header() const { return *reinterpret_cast<Header*>(data_); }

JobPage::Record& JobPage::record(int rank) const {
  return reinterpret_cast<Record*>(data_ + sizeof(Header))[rank];
}

JobPage::JobPage(FileDescriptor file, char* data, int ranks, int rank)
    : file_(std::move(file)), data_(data), ranks_(ranks), rank_(rank) {}

JobPage::~JobPage() { ::munmap(data_, bytes(ranks_)); }

absl::StatusOr<std::unique_ptr<JobPage>> JobPage::create(int ranks, JobOutline outline) {
  const auto failed = [&](const char* what) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make ", bytes(ranks),
                                                     " bytes of memory to share with ", ranks,
                                                     " ranks: ", system_refusal(what, errno)));
  };
  FileDescriptor file(::memfd_create(kName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return failed("memfd_create");
  if (::ftruncate(file.get(), bytes(ranks)) != 0) return failed("ftruncate");
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) return failed("getrandom");
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  std::unique_ptr<JobPage> page = map(file.get(), ranks, -1);
  if (page == nullptr) return failed("mmap");
  page->file_ = std::move(file);
  outline.launcher = ::getpid();
  outline.begin_ns = monotonic_ns();
  Header& header = page->header();
  header.nonce = nonce;
  header.ranks = ranks;
  header.outline = outline;
  header.version = kVersion;
  return page;
}

/// Maps the page in the file `fd`, read-only if `fd` was opened read-only. Returns null, with errno
/// set, if mmap() fails.
std::unique_ptr<JobPage> JobPage::map(int fd, int ranks, int rank) {
  const bool is_read_only = (::fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY;
  void* const data =
      ::mmap(nullptr, bytes(ranks), PROT_READ | (is_read_only ? 0 : PROT_WRITE), MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return nullptr;
  return std::unique_ptr<JobPage>(
      new JobPage(FileDescriptor(), static_cast<char*>(data), ranks, rank));
}

std::string JobPage::address() const {
  return absl::StrCat("/proc/", ::getpid(), "/fd/", file_.get(), ":", ranks_, ":", header().nonce);
}

std::unique_ptr<JobPage> JobPage::open(const std::string& address, int rank, int pid) {
  std::unique_ptr<JobPage> page = find(address, rank);
  if (page == nullptr) return nullptr;
  page->forget_failure();
  page->note_process(pid);
  page->record(rank).is_open.store(1, std::memory_order_release);
  return page;
}

void JobPage::note_arrival(const std::string& address, int rank, int pid) {
  if (const std::unique_ptr<JobPage> page = find(address, rank)) page->note_process(pid);
}

/// Maps the page for rank `rank`. Returns null as open() does.
std::unique_ptr<JobPage> JobPage::find(const std::string& address, int rank) {
  const std::vector<std::string> fields = absl::StrSplit(address, ':');
  int ranks = 0;
  uint64_t nonce = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &ranks) ||
      !absl::SimpleAtoi(fields[2], &nonce) || rank < 0 || rank >= ranks) {
    return nullptr;
  }
  // In another PID namespace the pid in `address` may belong to another process, so check the
  // file.
  const FileDescriptor fd(::open(fields[0].c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_size != bytes(ranks)) {
    return nullptr;
  }
  std::unique_ptr<JobPage> page = map(fd.get(), ranks, rank);
  if (page == nullptr || page->header().nonce != nonce || page->header().version != kVersion) {
    return nullptr;
  }
  return page;
}

/// Records that process `pid` runs this rank. If another process ran the rank before, removes the
/// progress which that process has noted.
void JobPage::note_process(int pid) noexcept {
  if (record(rank_).own_pid.exchange(pid) != pid) own_progress().begin();
}

std::unique_ptr<JobPage> JobPage::view(int pid, int fd) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status {};
  if (!may_be_at(pid, fd) || ::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      status.st_size < bytes(1) || !is_sealed(file.get())) {
    return nullptr;
  }
  const int64_t ranks = (status.st_size - bytes(0)) / (bytes(1) - bytes(0));
  if (ranks > kMostRanks) return nullptr;
  std::unique_ptr<JobPage> page = map(file.get(), static_cast<int>(ranks), -1);
  if (page == nullptr || page->header().version != kVersion || page->header().ranks != ranks ||
      status.st_size != bytes(page->ranks_) || page->header().outline.launcher != pid) {
    return nullptr;
  }
  return page;
}

bool JobPage::may_be_at(int pid, int fd) {
  std::array<char, 32> target;
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", fd);
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  const std::string name = absl::StrCat("/memfd:", kName, " ");
  return length > 0 &&
         std::string_view(target.data(), static_cast<size_t>(length)).starts_with(name);
}

void JobPage::note_failure(int culprit, std::string_view text) noexcept {
  Record& own = record(rank_);
  uint32_t expected = Record::kNone;
  if (!own.state.compare_exchange_strong(expected, Record::kWriting)) return;
  own.culprit = culprit;
  own.when_ns =
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  own.length.store(static_cast<uint32_t>(text.copy(own.text, sizeof(own.text))));
  own.state.store(Record::kThere, std::memory_order_release);
}

void JobPage::explain_failure(std::string_view text) noexcept {
  note_failure(rank_, text);
  Record& own = record(rank_);
  if (own.state.load(std::memory_order_acquire) != Record::kThere || own.culprit != rank_) return;
  const std::string_view noted(own.text, std::min<size_t>(own.length.load(), sizeof(own.text)));
  if (noted.find(text) != noted.npos || text.find(noted) != text.npos) return;
  size_t end = noted.size();
  for (const std::string_view part : {std::string_view(": "), text}) {
    end += part.copy(own.text + end, sizeof(own.text) - end);
  }
  own.length.store(static_cast<uint32_t>(end), std::memory_order_release);
}

void JobPage::forget_failure() noexcept {
  record(rank_).state.store(Record::kNone, std::memory_order_release);
}

RankProgress& JobPage::own_progress() noexcept { return record(rank_).progress; }

void JobPage::note_saved_step(int64_t step) noexcept {
  // Keeps the highest step, because a program may have two engines that save.
  std::atomic<int64_t>& saved = header().saved_step;
  int64_t highest = saved.load(std::memory_order_relaxed);
  while (highest < step && !saved.compare_exchange_weak(highest, step)) continue;
}

void JobPage::note_begin(int rank, int pid) noexcept {
  record(rank).pid.store(pid, std::memory_order_relaxed);
}

void JobPage::note_end(int rank, int wait_status) noexcept {
  record(rank).wait_status.store(wait_status, std::memory_order_relaxed);
  record(rank).has_ended.store(1, std::memory_order_release);
}

bool JobPage::is_reachable() const {
  return ::prctl(PR_GET_DUMPABLE) == 1 && find(address(), 0) != nullptr;
}

const RankProgress& JobPage::progress(int rank) const { return record(rank).progress; }

RankRecord JobPage::rank_record(int rank) const {
  const Record& theirs = record(rank);
  RankRecord read{.pid = theirs.pid.load(std::memory_order_relaxed),
                  .own_pid = theirs.own_pid.load(std::memory_order_relaxed),
                  .wait_status = std::nullopt};
  if (theirs.has_ended.load(std::memory_order_acquire) != 0) {
    read.wait_status = theirs.wait_status.load(std::memory_order_relaxed);
  }
  return read;
}

JobOutline JobPage::outline() const { return header().outline; }

int64_t JobPage::saved_step() const { return header().saved_step.load(std::memory_order_relaxed); }

bool JobPage::is_open(int rank) const {
  return record(rank).is_open.load(std::memory_order_acquire) != 0;
}

std::optional<FailureNote> JobPage::note(int rank) const {
  const Record& theirs = record(rank);
  if (theirs.state.load(std::memory_order_acquire) != Record::kThere) return std::nullopt;
  FailureNote note;
  note.when_ns = theirs.when_ns;
  note.culprit = theirs.culprit >= 0 && theirs.culprit < ranks_ ? theirs.culprit : rank;
  note.text.assign(theirs.text, std::min<size_t>(theirs.length.load(std::memory_order_acquire),
                                                 sizeof(theirs.text)));
  return note;
}

std::optional<FailureNote> JobPage::first_note() const {
  std::optional<FailureNote> first;
  for (int rank = 0; rank < ranks_; ++rank) {
    std::optional<FailureNote> note = this->note(rank);
    if (note && (!first || note->when_ns < first->when_ns)) first = std::move(note);
  }
  return first;
}

}  // namespace tessera::internal
