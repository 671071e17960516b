#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tessera/file_system.h"

namespace tessera::internal::testing {

/// An object store in memory: flat keys whose bytes appear completely and at once when their writer
/// is closed. It has no rename, no directories, no locks and no fsync; removing a missing object is
/// no error. Ranks that are threads share one.
class MemoryStore : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::Status remove_file(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;

  /// How a request fails.
  struct Fault {
    bool is_done = false;  ///< the request is done, only its answer is lost
    bool stops = false;    ///< as if the job is killed: all later requests fail and do nothing
  };
  /// Request `n` from now (0: the next one) fails.
  void fault_at(size_t n, Fault fault);
  /// Returns true if fault_at()'s request was reached.
  bool has_failed() const { return has_failed_; }
  /// From now on objects whose keys end with this are not put, or not removed; "": all are.
  void refuse_puts(const std::string& ending, absl::StatusCode code = absl::StatusCode::kInternal);
  void refuse_removals(const std::string& ending);
  /// The requests so far: "put a/b".
  const std::vector<std::string>& requests() const { return requests_; }

  /// A store with the same objects and no pending fault.
  std::shared_ptr<MemoryStore> copy() const;
  /// The objects whose keys begin with `prefix`, by the rest of their keys.
  std::map<std::string, std::string> objects(const std::string& prefix = "") const;
  /// Changes objects without a request.
  void put(const std::string& key, const std::string& bytes);
  void erase(const std::string& key);
  /// Makes the object, until it is put again, unreadable.
  void spoil(const std::string& key);

 private:
  friend class MemoryObject;

  /// Carries out a request, or fails as a fault demands.
  absl::Status request(const std::string& what, const std::string& path,
                       const std::function<absl::Status()>& act);

  mutable std::mutex mutex_;  // guards everything below
  std::map<std::string, std::string> objects_;
  std::vector<std::string> requests_;
  std::optional<size_t> faulty_request_;
  Fault fault_;
  bool has_failed_ = false;
  bool has_stopped_ = false;
  std::string refused_;  // ending of keys whose puts fail with this code:
  absl::StatusCode refused_by_ = absl::StatusCode::kInternal;
  std::string kept_;     // ending of keys whose removals fail
  std::string spoiled_;  // until it is put again
};

}  // namespace tessera::internal::testing
