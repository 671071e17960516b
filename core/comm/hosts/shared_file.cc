#include "tessera/core/comm/hosts/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/process/file_descriptor.h"
#include "tessera/core/process/standard_streams.h"

namespace tessera::internal::hosts {
namespace {

constexpr const char* kFileTag = "shared file";

/// Over the limit of file sizes the kernel would send SIGXFSZ, which ends the process.
bool is_allowed(int64_t bytes) {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
         static_cast<rlim_t>(bytes) <= limit.rlim_cur;
}

FileDescriptor create(int64_t bytes) {
  if (!is_allowed(bytes)) return FileDescriptor();
  FileDescriptor file(above_standard_streams(::memfd_create("tessera-hosts", MFD_CLOEXEC)));
  if (file.is_open() && ::ftruncate(file.get(), bytes) != 0) return FileDescriptor();
  return file;
}

FileDescriptor open_of(int64_t pid, int64_t descriptor, int64_t bytes) {
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", descriptor);
  FileDescriptor file(above_standard_streams(::open(path.c_str(), O_RDWR | O_CLOEXEC)));
  struct stat status {};
  const bool is_it = file.is_open() && ::fstat(file.get(), &status) == 0 &&
                     status.st_uid == ::geteuid() && status.st_size == bytes;
  return is_it ? std::move(file) : FileDescriptor();
}

char* map(const FileDescriptor& file, int64_t bytes) {
  if (!file.is_open()) return nullptr;
  void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                            file.get(), 0);
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, static_cast<size_t>(bytes), MADV_DONTFORK);
  return static_cast<char*>(data);
}

}  // namespace

std::shared_ptr<SharedFile> SharedFile::make(ProcessGroup& inside, int64_t bytes) {
  FileDescriptor file;
  const at::Tensor place = inside.allocate(2, at::kLong);
  auto* const words = place.mutable_data_ptr<int64_t>();
  words[0] = words[1] = -1;
  if (inside.rank() == 0) {
    file = create(bytes);
    words[0] = ::getpid();
    words[1] = file.get();
  }
  inside.broadcast(place, 0, kFileTag)->wait();
  if (inside.rank() != 0 && words[1] >= 0) file = open_of(words[0], words[1], bytes);
  char* const data = map(file, bytes);
  const at::Tensor mapped = inside.allocate(1, at::kInt);
  *mapped.mutable_data_ptr<int>() = data != nullptr ? 1 : 0;
  inside.all_reduce(mapped, ReduceOp::kMin, kFileTag)->wait();  // and the first may close it
  std::shared_ptr<SharedFile> made;
  if (data != nullptr) made.reset(new SharedFile(data, bytes));
  return *mapped.const_data_ptr<int>() != 0 ? made : nullptr;
}

SharedFile::~SharedFile() {
  if (origin_.is_here()) ::munmap(data_, static_cast<size_t>(bytes_));
}

}  // namespace tessera::internal::hosts
