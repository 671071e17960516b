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

/// A store of objects in memory: flat keys, each with bytes that are there whole, at once, when
/// their writer is closed. It has no rename, no directories, no locks and no fsync, and removes
/// what is not there without an error. Ranks that are threads share one.
class MemoryStore : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> open(const std::string& path) override;
  absl::Status remove_file(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> list(const std::string& path) override;
  absl::StatusOr<FileEntry> entry(const std::string& path) override;

  /// How a request fails.
  struct Fault {
    bool is_done = false;  ///< only its answer is lost
    bool stops = false;    ///< as where the job is killed: all later ones fail and do nothing
  };
  /// Request `n` from now (0: the next one) fails.
  void fault_at(size_t n, Fault fault);
  /// Whether fault_at's request was reached.
  bool has_failed() const { return has_failed_; }
  /// Objects whose keys end with this are not put, or not removed, from now on; "": all are.
  void refuse_puts(const std::string& ending);
  void refuse_removals(const std::string& ending);
  /// What was requested so far: "put a/b".
  const std::vector<std::string>& requests() const { return requests_; }

  /// The same objects, and no fault ahead.
  std::shared_ptr<MemoryStore> copy() const;
  /// By key, those that begin with `prefix`, under what follows upon it.
  std::map<std::string, std::string> objects(const std::string& prefix = "") const;
  /// Behind everybody's back.
  void put(const std::string& key, const std::string& bytes);
  void erase(const std::string& key);
  /// The object, as it is now, cannot be read.
  void spoil(const std::string& key);

 private:
  friend class MemoryObject;

  /// Does what a request asks for, or fails as it should.
  absl::Status request(const std::string& what, const std::string& path,
                       const std::function<absl::Status()>& act);

  mutable std::mutex mutex_;  // of all below
  std::map<std::string, std::string> objects_;
  std::vector<std::string> requests_;
  std::optional<size_t> faulty_request_;
  Fault fault_;
  bool has_failed_ = false;
  bool has_stopped_ = false;
  std::string refused_;  // of puts
  std::string kept_;     // of removals
  std::string spoiled_;  // until it is put again
};

}  // namespace tessera::internal::testing
