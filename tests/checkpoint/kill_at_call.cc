// Preloaded into ranks: kills one of them right before its n-th call on files below a directory.
// KILL_RANK, KILL_AT, KILL_BELOW; does nothing without them.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <bitset>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t kMaxDescriptors = 4096;

const char* variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Whether this process is the rank to be killed.
bool is_chosen() {
  static const bool chosen =
      *variable("KILL_RANK") != '\0' && std::strcmp(variable("KILL_RANK"), variable("RANK")) == 0;
  return chosen;
}

bool is_below(const char* path) {
  static const char* const directory = variable("KILL_BELOW");
  return is_chosen() && *directory != '\0' &&
         std::strncmp(path, directory, std::strlen(directory)) == 0;
}

std::bitset<kMaxDescriptors>& descriptors() {
  static std::bitset<kMaxDescriptors> below;
  return below;
}
bool is_below(int fd) {
  return fd >= 0 && static_cast<size_t>(fd) < kMaxDescriptors &&
         descriptors()[static_cast<size_t>(fd)];
}

void count_call() {
  static std::atomic<int> calls = 0;
  static const int at = std::atoi(variable("KILL_AT"));
  if (++calls == at) ::kill(::getpid(), SIGKILL);
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const real = next<int(const char*, int, ...)>("open");
  va_list arguments;
  va_start(arguments, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(arguments, mode_t) : 0;
  va_end(arguments);
  if (!is_below(path)) return real(path, flags, mode);
  count_call();
  const int fd = real(path, flags, mode);
  if (fd >= 0 && static_cast<size_t>(fd) < kMaxDescriptors) {
    descriptors()[static_cast<size_t>(fd)] = true;
  }
  return fd;
}

int close(int fd) {
  static auto* const real = next<int(int)>("close");
  if (is_below(fd)) {
    count_call();
    descriptors()[static_cast<size_t>(fd)] = false;
  }
  return real(fd);
}

ssize_t write(int fd, const void* bytes, size_t size) {
  static auto* const real = next<ssize_t(int, const void*, size_t)>("write");
  if (is_below(fd)) count_call();
  return real(fd, bytes, size);
}

int fsync(int fd) {
  static auto* const real = next<int(int)>("fsync");
  if (is_below(fd)) count_call();
  return real(fd);
}

int fchmod(int fd, mode_t mode) {
  static auto* const real = next<int(int, mode_t)>("fchmod");
  if (is_below(fd)) count_call();
  return real(fd, mode);
}

int mkdir(const char* path, mode_t mode) {
  static auto* const real = next<int(const char*, mode_t)>("mkdir");
  if (is_below(path)) count_call();
  return real(path, mode);
}

int renameat2(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  static auto* const real = next<int(int, const char*, int, const char*, unsigned)>("renameat2");
  if (is_below(from)) count_call();
  return real(from_fd, from, to_fd, to, flags);
}

int unlink(const char* path) {
  static auto* const real = next<int(const char*)>("unlink");
  if (is_below(path)) count_call();
  return real(path);
}

int rmdir(const char* path) {
  static auto* const real = next<int(const char*)>("rmdir");
  if (is_below(path)) count_call();
  return real(path);
}

}  // extern "C"
