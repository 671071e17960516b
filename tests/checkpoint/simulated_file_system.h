#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/files/file_operations.h"

namespace tessera::internal::testing {

struct SimulatedNode;

/// Files in memory, on a disk that fails and loses power as a test asks.
///
/// After a power failure a disk may hold: of each file the fsynced bytes, and of later writes
/// nothing, a prefix, the end without the beginning (blocks are written in any order) or all; of
/// each directory the names at its last fsync, and any subset of the later creations, renames and
/// removals. A rename is atomic. After a failed fsync of a file or a directory its changes never
/// become durable, because the kernel may have dropped them.
class SimulatedFileSystem : public FileSystem {
 public:
  SimulatedFileSystem();
  SimulatedFileSystem(const SimulatedFileSystem&) = delete;
  SimulatedFileSystem& operator=(const SimulatedFileSystem&) = delete;
  ~SimulatedFileSystem() override;

  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::Status make_directory(const std::string& path) override;
  absl::Status sync_directory(const std::string& path) override;
  bool can_rename() const override { return true; }
  absl::Status rename(const std::string& from, const std::string& to) override;
  absl::Status remove_file(const std::string& path) override;
  absl::Status remove_directory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock(const std::string& path,
                                                 const std::string& holder) override;
  absl::StatusOr<std::unique_ptr<FileLock>> lock_content(const std::string& path,
                                                         bool alone) override;

  /// The operations so far: "write /a/b".
  const std::vector<std::string>& operations() const { return operations_; }

  /// Operation `n` from now (0: the next one) fails with `error`; a write after half of its bytes.
  void fail_at(size_t n, int error);
  /// The power fails in operation `n` from now, in a write after half of its bytes. That one and
  /// all later ones fail and change nothing.
  void crash_at(size_t n);
  /// Returns true if fail_at()'s or crash_at()'s operation was reached.
  bool has_failed() const { return has_failed_; }
  /// From now on all files together hold at most this many bytes.
  void set_capacity(int64_t bytes) { capacity_ = bytes; }

  /// The number of states that the disk may have after a power failure now (some may be equal), and
  /// one of them.
  size_t crash_states() const;
  std::unique_ptr<SimulatedFileSystem> after_crash(size_t state) const;
  /// A copy with everything done so far, and no crash or failure ahead.
  std::unique_ptr<SimulatedFileSystem> copy() const;

  /// Damages files without an operation. `path` must exist.
  std::string& content(const std::string& path);
  void put_file(const std::string& path, std::string content);
  void put_link(const std::string& path);
  void erase(const std::string& path);
  void swap(const std::string& one, const std::string& other);
  /// All files and their content below `path`.
  std::map<std::string, std::string> files_below(const std::string& path) const;

 private:
  friend class SimulatedWritableFile;
  friend class SimulatedReadableFile;
  using NodePointer = std::shared_ptr<SimulatedNode>;

  /// Counts an operation; returns an error if it must fail. `half`: set if half of a write must be
  /// done.
  absl::Status begin(std::string_view operation, const std::string& path, bool* half = nullptr);
  NodePointer find(const std::string& path) const;
  /// The directory that contains `path`'s last name, or null.
  NodePointer directory_of(const std::string& path) const;
  int64_t used_bytes() const;
  /// `choose` picks one of `states` states for each node; the last one keeps everything.
  std::unique_ptr<SimulatedFileSystem> with_choices(
      const std::function<size_t(size_t states)>& choose) const;
  /// All nodes that any state may contain, each once.
  std::vector<NodePointer> all_nodes() const;

  NodePointer root_;
  std::vector<std::string> operations_;
  std::optional<size_t> failing_operation_;  // counted like operations_
  int failure_ = 0;                          // an errno; 0: a power failure
  bool has_failed_ = false;
  bool has_crashed_ = false;
  int64_t capacity_ = INT64_MAX;
};

}  // namespace tessera::internal::testing
