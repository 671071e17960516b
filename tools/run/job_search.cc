#include "tessera/tools/run/job_search.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tessera::internal {
namespace {

constexpr size_t kLongestProgram = 200;

/// Returns the numeric entries of a folder of /proc, in order, and the errno if the system refuses,
/// else 0.
std::pair<std::vector<int>, int> numbers_in(const std::string& path) {
  std::vector<int> numbers;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (folder == nullptr) return {numbers, errno};
  while (const dirent* const entry = readdir(folder.get())) {
    int number = 0;
    if (absl::SimpleAtoi(entry->d_name, &number)) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return {numbers, 0};
}

/// Returns the PID namespace, as in "pid:[4026531836]"; "" if it cannot be read.
std::string pid_namespace(const std::string& process) {
  std::array<char, 64> target;
  const ssize_t length =
      readlink(absl::StrCat("/proc/", process, "/ns/pid").c_str(), target.data(), target.size());
  return length < 0 ? "" : std::string(target.data(), static_cast<size_t>(length));
}

std::string program_of(int pid) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/cmdline"), std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c == '\0'; }, ' ');
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c >= 127; }, '?');
  if (text.size() > kLongestProgram) text = text.substr(0, kLongestProgram) + "...";
  return text;
}

/// Returns the page of process `pid`, and how many of its descriptors look like a page.
std::pair<std::unique_ptr<JobPage>, int> page_of(int pid, const std::vector<int>& descriptors) {
  int candidates = 0;
  for (const int fd : descriptors) {
    if (!JobPage::may_be_at(pid, fd)) continue;
    ++candidates;
    if (auto page = JobPage::view(pid, fd)) return {std::move(page), candidates};
  }
  return {nullptr, candidates};
}

/// Returns true if the process belongs to this user, or this user is root.
bool is_visible(int pid) {
  struct stat owner;
  return stat(absl::StrCat("/proc/", pid).c_str(), &owner) == 0 &&
         (geteuid() == 0 || owner.st_uid == geteuid());
}

}  // namespace

std::vector<FoundJob> find_jobs() {
  std::vector<FoundJob> jobs;
  for (const int pid : numbers_in("/proc").first) {
    if (!is_visible(pid)) continue;
    auto [page, candidates] = page_of(pid, numbers_in(absl::StrCat("/proc/", pid, "/fd")).first);
    if (page != nullptr) jobs.push_back({pid, program_of(pid), std::move(page)});
  }
  return jobs;
}

absl::StatusOr<FoundJob> find_job(int pid) {
  if (access("/proc/self/ns/pid", F_OK) != 0 && access("/proc/self/stat", F_OK) != 0) {
    return absl::UnavailableError(
        "/proc shows no processes here, and jobs are found by it; mount it (mount -t proc proc "
        "/proc)");
  }
  const auto [descriptors, error] = numbers_in(absl::StrCat("/proc/", pid, "/fd"));
  if (error == EACCES || error == EPERM) {
    return absl::PermissionDeniedError(absl::StrCat(
        "process ", pid, " is closed to this one (", strerror(error),
        "): it belongs to another user, or its program may not be read; ask as that user or root"));
  }
  if (error != 0) {
    return absl::NotFoundError(absl::StrCat(
        "there is no process ", pid,
        " here; in a container it has another number, and --status has to be asked in there"));
  }
  if (const std::string other = pid_namespace(absl::StrCat(pid));
      !other.empty() && other != pid_namespace("self")) {
    return absl::FailedPreconditionError(
        absl::StrCat("process ", pid,
                     " runs in another PID namespace (a container), where processes have other "
                     "numbers; ask in there (docker exec, or nsenter --target ",
                     pid, " --pid --mount)"));
  }
  auto [page, candidates] = page_of(pid, descriptors);
  if (page != nullptr) return FoundJob{pid, program_of(pid), std::move(page)};
  if (candidates > 0) {
    return absl::UnavailableError(absl::StrCat(
        "the job of process ", pid,
        " was started by another version of Tessera; ask with the tessera-run of that one"));
  }
  return absl::UnavailableError(
      absl::StrCat("process ", pid,
                   " has no ranks now: it is not what started a job (tessera-run, or a program "
                   "that calls launch()), or it is between two attempts"));
}

std::string list_jobs(const std::vector<FoundJob>& jobs) {
  std::string text =
      absl::StrCat(jobs.size(), " jobs run here; say which one: tessera-run --status ",
                   jobs.empty() ? 0 : jobs.front().launcher);
  for (const FoundJob& job : jobs) {
    const int ranks = job.page->ranks();
    absl::StrAppend(&text, "\n  ", job.launcher, ": ", ranks, ranks == 1 ? " rank, " : " ranks, ",
                    job.program);
  }
  return text;
}

}  // namespace tessera::internal
