#include "tessera/tests/checkpoint/memory_store.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal::testing {

/// An object being written or read.
class MemoryObject final : public WritableFile, public ReadableFile {
 public:
  MemoryObject(MemoryStore& store, std::string key) : store_(store), key_(std::move(key)) {}

  absl::Status write_all(std::string_view bytes) override {
    return store_.request("write", key_, [&] {
      bytes_.append(bytes);
      return absl::OkStatus();
    });
  }
  absl::Status close() override {
    return store_.request("put", key_, [&]() -> absl::Status {
      if (!store_.refused_.empty() && key_.ends_with(store_.refused_)) {
        return {store_.refused_by_, absl::StrCat("[store] cannot put '", key_, "'")};
      }
      if (store_.objects_.try_emplace(key_, bytes_).second) {
        if (key_ == store_.spoiled_) store_.spoiled_.clear();
        return absl::OkStatus();
      }
      return absl::AlreadyExistsError(absl::StrCat("[store] cannot put '", key_, "': it exists"));
    });
  }
  absl::Status read(int64_t offset, absl::Span<char> to) override {
    return store_.request("read", key_, [&]() -> absl::Status {
      if (key_ == store_.spoiled_) {
        return absl::DataLossError(absl::StrCat("[store] cannot read '", key_, "': it is spoiled"));
      }
      const auto found = store_.objects_.find(key_);
      if (found == store_.objects_.end()) {
        return absl::NotFoundError(absl::StrCat("[store] no object '", key_, "'"));
      }
      const std::string& bytes = found->second;
      const auto begin = static_cast<size_t>(offset);
      if (begin > bytes.size() || bytes.size() - begin < to.size()) {
        return absl::OutOfRangeError(absl::StrCat("[store] cannot read '", key_, "': it ends"));
      }
      std::copy_n(bytes.data() + begin, to.size(), to.data());
      return absl::OkStatus();
    });
  }

 private:
  MemoryStore& store_;
  const std::string key_;
  std::string bytes_;  // until close() puts them
};

absl::Status MemoryStore::request(const std::string& what, const std::string& path,
                                  const std::function<absl::Status()>& act) {
  const std::lock_guard lock(mutex_);
  const absl::Status failure =
      absl::UnavailableError(absl::StrCat("[store] cannot ", what, " '", path, "'"));
  if (has_stopped_) return failure;
  const size_t number = requests_.size();
  requests_.push_back(absl::StrCat(what, " ", path));
  if (number != faulty_request_) return act();
  has_failed_ = true;
  has_stopped_ = fault_.stops;
  if (fault_.is_done) (void)act();
  return failure;
}

absl::StatusOr<std::unique_ptr<WritableFile>> MemoryStore::create(const std::string& path) {
  absl::Status status = request("create", path, [&]() -> absl::Status {
    if (!objects_.contains(path)) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat("[store] cannot create '", path, "': it exists"));
  });
  if (!status.ok()) return status;
  return std::make_unique<MemoryObject>(*this, path);
}

absl::StatusOr<std::unique_ptr<ReadableFile>> MemoryStore::open(const std::string& path) {
  const auto is_there = entry(path);
  if (!is_there.ok()) return is_there.status();
  return std::make_unique<MemoryObject>(*this, path);
}

absl::Status MemoryStore::remove_file(const std::string& path) {
  return request("remove", path, [&]() -> absl::Status {
    if (!kept_.empty() && path.ends_with(kept_)) {
      return absl::InternalError(absl::StrCat("[store] cannot remove '", path, "'"));
    }
    objects_.erase(path);
    return absl::OkStatus();
  });
}

absl::StatusOr<std::vector<std::string>> MemoryStore::list(const std::string& path) {
  std::vector<std::string> names;
  const std::string prefix = path + "/";
  absl::Status status = request("list", path, [&] {
    for (auto object = objects_.lower_bound(prefix);
         object != objects_.end() && object->first.starts_with(prefix); ++object) {
      const std::string rest = object->first.substr(prefix.size());
      names.push_back(rest.substr(0, rest.find('/')));
    }
    std::sort(names.begin(), names.end());  // "a.b/c" comes before "a/c", and "a" before "a.b"
    names.erase(std::unique(names.begin(), names.end()), names.end());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return names;
}

absl::StatusOr<FileEntry> MemoryStore::entry(const std::string& path) {
  FileEntry entry;
  absl::Status status = request("head", path, [&]() -> absl::Status {
    const auto found = objects_.find(path);
    if (found == objects_.end()) {
      return absl::NotFoundError(absl::StrCat("[store] no object '", path, "'"));
    }
    entry.bytes = static_cast<int64_t>(found->second.size());
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  return entry;
}

void MemoryStore::fault_at(size_t n, Fault fault) {
  const std::lock_guard lock(mutex_);
  faulty_request_ = requests_.size() + n;
  fault_ = fault;
  has_failed_ = false;
}

void MemoryStore::refuse_puts(const std::string& ending, absl::StatusCode code) {
  const std::lock_guard lock(mutex_);
  refused_ = ending;
  refused_by_ = code;
}

void MemoryStore::refuse_removals(const std::string& ending) {
  const std::lock_guard lock(mutex_);
  kept_ = ending;
}

std::shared_ptr<MemoryStore> MemoryStore::copy() const {
  auto copy = std::make_shared<MemoryStore>();
  copy->objects_ = objects();
  return copy;
}

std::map<std::string, std::string> MemoryStore::objects(const std::string& prefix) const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, std::string> found;
  for (const auto& [key, bytes] : objects_) {
    if (key.starts_with(prefix)) found[key.substr(prefix.size())] = bytes;
  }
  return found;
}

void MemoryStore::put(const std::string& key, const std::string& bytes) {
  const std::lock_guard lock(mutex_);
  objects_[key] = bytes;
}

void MemoryStore::spoil(const std::string& key) {
  const std::lock_guard lock(mutex_);
  spoiled_ = key;
}

void MemoryStore::erase(const std::string& key) {
  const std::lock_guard lock(mutex_);
  objects_.erase(key);
}

}  // namespace tessera::internal::testing
