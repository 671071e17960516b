#include "tessera/core/layout/throwing_storage.h"

#include <mutex>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>
#include <c10/core/StorageImpl.h>

#include "tessera/core/process/fork.h"

namespace tessera::internal {
namespace {

// See Note [Throwing storage]. Each instantiation below defines an address_of(tag) that returns the
// address of a private member.
struct ThrowFlag {
  using Type = bool c10::StorageImpl::*;
  friend Type address_of(ThrowFlag);
};
struct CheckFlag {
  using Type = bool c10::StorageImpl::*;
  friend Type address_of(CheckFlag);
};

template <typename Tag, typename Tag::Type Address>
struct Reach {
  friend typename Tag::Type address_of(Tag) { return Address; }
};

template struct Reach<ThrowFlag, &c10::StorageImpl::throw_on_immutable_data_ptr_>;
template struct Reach<CheckFlag, &c10::StorageImpl::has_mutable_data_ptr_check_>;

bool& throw_flag(c10::StorageImpl& storage) { return storage.*address_of(ThrowFlag{}); }
bool& check_flag(c10::StorageImpl& storage) { return storage.*address_of(CheckFlag{}); }

}  // namespace

/// The part of a storage that the fork handler uses in a child. Must not move.
class ThrowingStorage::Entry {
 public:
  explicit Entry(c10::Storage of) : storage(std::move(of)) {}

  c10::StorageImpl& impl() const { return *storage.unsafeGetStorageImpl(); }

  /// Denies access to the storage for good. Called in a child, before fork() returns there.
  void bar_for_good() noexcept {
    if (std::exchange(is_in_child, true)) return;
    throw_flag(impl()) = true;
    check_flag(impl()) = true;
    impl().get_extra_meta().custom_data_ptr_error_msg_->swap(told_in_child);
  }

  const c10::Storage storage;
  std::string told_in_child =
      absl::StrCat("[engine] parameter: ", Origin().fork_error("a rank that trains this model"));
  bool is_in_child = false;
};

/// All entries of this process. A child walks through them without using the heap. The mutex is
/// also held while messages change, so that a child finds them complete.
class ThrowingStorage::Entries {
 public:
  static Entries& get() {
    static Entries* const entries = make();  // never destroyed: models may outlive statics
    return *entries;
  }

  std::mutex& mutex() { return mutex_; }

  void add(Entry& entry) {
    const std::lock_guard lock(mutex_);
    by_storage_.emplace(&entry.impl(), &entry);
  }

  bool has(const c10::Storage& storage) {
    const std::lock_guard lock(mutex_);
    return by_storage_.contains(storage.unsafeGetStorageImpl());
  }

  void remove(Entry& entry) {
    const std::lock_guard lock(mutex_);
    by_storage_.erase(&entry.impl());
  }

 private:
  static Entries* make() {
    held_ = new Entries;
    hold_across_fork(held_->mutex_, []() noexcept {
      for (const auto& [storage, entry] : held_->by_storage_) entry->bar_for_good();
    });
    return held_;
  }

  static inline constinit Entries* held_ = nullptr;

  std::mutex mutex_;
  absl::flat_hash_map<const c10::StorageImpl*, Entry*> by_storage_;
};

ThrowingStorage::ThrowingStorage(c10::Storage storage, at::Device device, const std::string& error)
    : entry_(std::make_unique<Entry>(std::move(storage))) {
  entry_->impl().set_resizable(false);
  deny(error);
  point_to({nullptr, device}, Access::kDenied);
  Entries::get().add(*entry_);
}

ThrowingStorage::~ThrowingStorage() {
  if (entry_ != nullptr) Entries::get().remove(*entry_);
}

ThrowingStorage::ThrowingStorage(ThrowingStorage&&) noexcept = default;

const c10::Storage& ThrowingStorage::storage() const { return entry_->storage; }

void* ThrowingStorage::data() const { return entry_->impl()._mutable_data_ptr_no_checks().get(); }

/// Points the storage to `data`, and allows or denies access to it. The throw flag is set first,
/// because set_data_ptr_noswap() makes the storage read the flag again.
void ThrowingStorage::point_to(c10::DataPtr data, Access access) {
  throw_flag(entry_->impl()) = access == Access::kDenied || entry_->is_in_child;
  entry_->impl().set_data_ptr_noswap(std::move(data));
}

void ThrowingStorage::deny(const std::string& error) {
  if (entry_->is_in_child) return;
  c10::StorageImpl& impl = entry_->impl();
  const std::lock_guard lock(Entries::get().mutex());
  if (impl.get_extra_meta().custom_data_ptr_error_msg_ == error) {
    throw_flag(impl) = true;
    check_flag(impl) = true;
  } else {
    impl.release_data_and_set_meta_custom_data_ptr_error_msg_(error);
  }
}

bool ThrowingStorage::has_taken(const c10::Storage& storage) { return Entries::get().has(storage); }

}  // namespace tessera::internal
