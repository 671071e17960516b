#include "tessera/checkpoint/files/file_operations.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <vector>

#include <absl/strings/cord.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

namespace tessera::internal {

namespace {

constexpr const char* kErrno = "tessera/errno";

const char* remedy(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return "; where several users save, give the directory to their group (chgrp -R, chmod -R "
             "g+rwX), and let all of them save with group_access and umask 002";
    case ENOSPC:
    case EDQUOT:
      return "; make room, or keep fewer steps (CheckpointsOptions::keep)";
    case EFBIG:
      return "; raise ulimit -f, or use a file system for larger files";
    case EMFILE:
      return "; raise ulimit -n";
    default:
      return "";
  }
}

/// Returns the names in the directory `path`; nothing if `path` is a file or a link. If the file
/// system does not know `path`, lists it anyway, because an object store may know a directory only
/// by its content.
absl::StatusOr<std::optional<std::vector<std::string>>> names_below(FileSystem& files,
                                                                    const std::string& path) {
  const auto entry = files.entry(path);
  if (entry.ok() && entry->kind != FileEntry::Kind::kDirectory) return std::nullopt;
  if (!entry.ok() && !absl::IsNotFound(entry.status())) return entry.status();
  return files.list(path);
}

/// Returns true if the file can be read to its end.
bool is_readable(FileSystem& files, const std::string& path) {
  const auto entry = files.entry(path);
  const auto file = files.open(path);
  const auto ignore = [](std::string_view) { return absl::OkStatus(); };
  return entry.ok() && file.ok() && read_pieces(**file, entry->bytes, ignore).ok();
}

}  // namespace

absl::Status file_error(int error, std::string_view operation, std::string_view path) {
  absl::StatusCode code = absl::ErrnoToStatusCode(error);
  // Abseil maps ENODEV, ENOMEDIUM and ESRCH to kNotFound, too. But a file system that is not
  // available must not look like an absent file.
  if (code == absl::StatusCode::kNotFound && error != ENOENT) code = absl::StatusCode::kUnavailable;
  return with_errno(
      {code, absl::StrCat("[checkpoint] cannot ", std::string(operation), " '", std::string(path),
                          "': ", std::strerror(error), " (errno ", error, ")", remedy(error))},
      error);
}

absl::Status with_errno(absl::Status status, int error) {
  status.SetPayload(kErrno, absl::Cord(absl::StrCat(error)));
  return status;
}

int errno_of(const absl::Status& status) {
  const auto text = status.GetPayload(kErrno);
  int error = 0;
  return text.has_value() && absl::SimpleAtoi(std::string(*text), &error) ? error : 0;
}

bool is_transient(const absl::Status& status) {
  switch (errno_of(status)) {
    case 0:
      return absl::IsUnavailable(status);  // no errno: an error of a program's own file system
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EEXIST:
    case EACCES:
    case EPERM:
    case EROFS:
    case EINVAL:
    case ENOSYS:
    case EOPNOTSUPP:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EOVERFLOW:
      return false;
    default:
      return true;
  }
}

bool is_damage(const absl::Status& status) {
  switch (errno_of(status)) {
    case 0:
      break;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case ELOOP:
      return true;
    default:
      return false;
  }
  switch (status.code()) {
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kFailedPrecondition:
      return true;
    default:
      return false;
  }
}

bool is_held(const absl::Status& status) {
  // A refused lock has no errno. System calls that fail with EBUSY have this code, too, but
  // `status` then has the errno.
  return absl::IsFailedPrecondition(status) && errno_of(status) == 0;
}

std::string join_path(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (path.empty() || path.back() != '/') path += '/';
  return path.append(name);
}

std::string parent_path(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

absl::StatusOr<bool> exists(ReadableFileSystem& files, const std::string& path) {
  const auto entry = files.entry(path);
  if (entry.ok()) return true;
  if (absl::IsNotFound(entry.status())) return false;
  return entry.status();
}

absl::Status remove_tree(FileSystem& files, const std::string& path) {
  const auto names = names_below(files, path);
  if (!names.ok()) return absl::IsNotFound(names.status()) ? absl::OkStatus() : names.status();
  if (!names->has_value()) return files.remove_file(path);
  absl::Status status;
  for (const std::string& name : **names) status.Update(remove_tree(files, join_path(path, name)));
  status.Update(files.remove_directory(path));
  return status;
}

absl::Status read_pieces(ReadableFile& file, int64_t bytes,
                         const std::function<absl::Status(std::string_view)>& take) {
  constexpr int64_t kChunkBytes = 1 << 20;
  absl::Status status;
  std::string chunk;
  for (int64_t at = 0; status.ok() && at < bytes; at += kChunkBytes) {
    chunk.resize(static_cast<size_t>(std::min(kChunkBytes, bytes - at)));
    status = file.read(at, absl::MakeSpan(chunk));
    if (status.ok()) status = take(chunk);
  }
  return status;
}

absl::Status copy_tree(FileSystem& files, const std::string& from, const std::string& to) {
  const auto names = names_below(files, from);
  if (!names.ok()) return names.status();
  if (!names->has_value()) {
    absl::Status status = files.copy_file(from, to);
    // Leaves the file out only if `from` cannot be read, because the error may also be one of
    // writing `to`.
    if (status.ok() || !is_damage(status) || is_readable(files, from)) return status;
    std::fprintf(stderr, "%s; it is left out of '%s'\n", std::string(status.message()).c_str(),
                 to.c_str());
    return absl::OkStatus();
  }
  absl::Status status;
  for (auto name = (*names)->rbegin(); status.ok() && name != (*names)->rend(); ++name) {
    status = copy_tree(files, join_path(from, *name), join_path(to, *name));
  }
  return status;
}

std::string printable(std::string_view text) {
  constexpr size_t kMaxBytes = 200;
  const bool is_long = text.size() > kMaxBytes;
  const std::string_view part = text.substr(0, kMaxBytes);
  return absl::StrCat(absl::Utf8SafeCHexEscape({part.data(), part.size()}), is_long ? "..." : "");
}

}  // namespace tessera::internal
