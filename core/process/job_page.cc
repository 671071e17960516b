#include "tessera/core/process/job_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "tessera/core/process/system_refusal.h"

namespace tessera::internal {

struct alignas(64) JobPage::Header {
  uint64_t nonce;
  std::atomic<int64_t> saved_step;
};

struct alignas(64) JobPage::Record {
  enum State : uint32_t { kNone, kWriting, kThere };

  std::atomic<uint32_t> is_open;
  std::atomic<uint32_t> state;
  int32_t culprit;
  std::atomic<uint32_t> length;  // of what is there for good: more may come behind it
  int64_t when_ns;
  char text[2000];
  std::atomic<int64_t> step;
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

absl::StatusOr<std::unique_ptr<JobPage>> JobPage::create(int ranks) {
  const auto failed = [&](const char* what) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot make ", bytes(ranks),
                                                     " bytes of memory to share with ", ranks,
                                                     " ranks: ", system_refusal(what, errno)));
  };
  FileDescriptor file(::memfd_create("tessera-job", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.is_open()) return failed("memfd_create");
  if (::ftruncate(file.get(), bytes(ranks)) != 0) return failed("ftruncate");
  uint64_t nonce = 0;
  if (::getrandom(&nonce, sizeof(nonce), 0) != sizeof(nonce)) return failed("getrandom");
  ::fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  void* const data =
      ::mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  std::unique_ptr<JobPage> page(new JobPage(std::move(file), static_cast<char*>(data), ranks, -1));
  page->header().nonce = nonce;
  return page;
}

std::string JobPage::address() const {
  return absl::StrCat("/proc/", ::getpid(), "/fd/", file_.get(), ":", ranks_, ":", header().nonce);
}

std::unique_ptr<JobPage> JobPage::open(const std::string& address, int rank) {
  const std::vector<std::string> fields = absl::StrSplit(address, ':');
  int ranks = 0;
  uint64_t nonce = 0;
  if (fields.size() != 3 || !absl::SimpleAtoi(fields[1], &ranks) ||
      !absl::SimpleAtoi(fields[2], &nonce) || rank < 0 || rank >= ranks) {
    return nullptr;
  }
  // The number may be another process's, in another namespace: any file may lie there.
  const FileDescriptor fd(::open(fields[0].c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0 || !S_ISREG(file.st_mode) || file.st_size != bytes(ranks)) {
    return nullptr;
  }
  void* const data = ::mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return nullptr;
  std::unique_ptr<JobPage> page(
      new JobPage(FileDescriptor(), static_cast<char*>(data), ranks, rank));
  if (page->header().nonce != nonce) return nullptr;
  page->forget_failure();
  page->record(rank).is_open.store(1, std::memory_order_release);
  return page;
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

void JobPage::note_step(int64_t step) noexcept {
  record(rank_).step.store(step, std::memory_order_relaxed);
}

void JobPage::note_saved_step(int64_t step) noexcept {
  header().saved_step.store(step, std::memory_order_relaxed);
}

int64_t JobPage::step(int rank) const { return record(rank).step.load(std::memory_order_relaxed); }

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
