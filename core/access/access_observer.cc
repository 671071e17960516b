#include "tessera/core/access/access_observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <absl/container/flat_hash_map.h>
#include <c10/util/SmallVector.h>

#include "tessera/core/access/global_callback.h"

namespace tessera::internal {

// Note [Access observer]
// LibTorch calls a global RecordFunction callback at the start and the end of every operator, on
// the thread that runs it, with the operator's inputs. At the start the callback makes a
// parameter's memory ready, at the end it releases it. This works for any model, in forward,
// backward and recomputation, for TorchScript and for operators inside at::parallel_for, because
// all of them use the dispatcher. An access that bypasses the dispatcher (a raw pointer, a fused
// kernel, RecordFunctionGuard(false)) throws: Note [Throwing storage].
//
// An operator's pins last until its end callback, so operators nested in it cannot free memory that
// it uses. Every operator reads the set of watched storages, which changes rarely. So each thread
// keeps a reference to an immutable map, and compares one atomic number to see whether there is a
// newer map. The map owns its targets, and so does each operator that has pinned a target: an
// observer may be destroyed while other threads are between lookup and pin, or between start and
// end.
//
// The callback also runs for operators that read no parameter, and for a unit that is whole it only
// counts the access. So it must cost little: a thread's cache of operators takes one comparison, a
// filter rejects most storages that are not watched, and pins reuse memory of the thread. Most of
// the cost is LibTorch's (boxing the inputs, calling back), and only at::disableCallback would save
// it. The callback stays enabled even while every unit is whole, because it also detects writes
// outside modify_parameters(), which version counters do not always show (a write through .data
// leaves them unchanged).

namespace {

/// Finds the target of a storage. Fast for storages that have no target, because most inputs are
/// not parameters.
class Targets {
 public:
  explicit Targets(size_t count)
      : places_log2_(std::max<int>(kFewestPlacesLog2, std::bit_width(count * kPlacesPerStorage))),
        filter_((size_t{1} << places_log2_) / 64) {}

  void add(const c10::StorageImpl* storage, AccessTarget* target) {
    const uint64_t place = place_of(storage);
    filter_[place / 64] |= uint64_t{1} << (place % 64);
    map_[storage] = target;
  }

  AccessTarget* find(const c10::StorageImpl* storage) const {
    const uint64_t place = place_of(storage);
    if (((filter_[place / 64] >> (place % 64)) & 1) == 0) return nullptr;
    const auto found = map_.find(storage);
    return found == map_.end() ? nullptr : found->second;
  }

  /// Returns true if no storage is watched. Also true in a child of fork(), because storages throw
  /// there, and operators must not wait or unpin.
  bool empty() const { return map_.empty() || !origin_.is_here(); }

 private:
  // The filter has at least kPlacesPerStorage bits for each watched storage, and at least
  // 2^kFewestPlacesLog2 bits. So at most one in sixteen of the storages that are not watched passes
  // it by chance.
  static constexpr size_t kPlacesPerStorage = 16;
  static constexpr int kFewestPlacesLog2 = 12;

  uint64_t place_of(const c10::StorageImpl* storage) const {
    constexpr uint64_t kGolden = 0x9E3779B97F4A7C15;  // spreads all input bits to the high bits
    return (static_cast<uint64_t>(reinterpret_cast<uintptr_t>(storage)) * kGolden) >>
           (64 - places_log2_);
  }

  const int places_log2_;
  std::vector<uint64_t> filter_;
  absl::flat_hash_map<const c10::StorageImpl*, AccessTarget*> map_;
  const Origin origin_;
};

/// Properties of an operator: those in its schema, and writes that the schema of some operators
/// hides.
struct OperatorTraits {
  static constexpr uint8_t kAlways = 255;

  bool makes_views = false;     // all results are views, and the operator itself reads nothing
  uint64_t written_inputs = 0;  // a bit per argument; arguments after the first 64 count as read
  uint64_t statistics = 0;      // a bit per argument that holds running statistics
  // The index of the argument that says whether the call writes statistics; kAlways: every call
  // does.
  uint8_t when = kAlways;

  /// Returns which arguments an operator's call writes, a bit per argument. `inputs`: the
  /// arguments.
  uint64_t written_by(c10::ArrayRef<const c10::IValue> inputs) const {
    if (statistics == 0) return written_inputs;
    const bool writes =
        when == kAlways || when >= inputs.size() || !inputs[when].isBool() || inputs[when].toBool();
    return writes ? written_inputs | statistics : written_inputs;
  }
};

/// Batch and instance normalisation write running statistics, although most of their schemas do not
/// declare it. The test HiddenWrites calls every operator that has such arguments.
void find_statistics(const c10::FunctionSchema& schema, OperatorTraits& traits) {
  const std::string& name = schema.name();
  // The first name also matches batch_norm_gather_stats_with_counts.
  const bool gathers = name.find("batch_norm_gather_stats") != std::string::npos ||
                       name.find("batch_norm_update_stats") != std::string::npos;
  uint64_t statistics = 0;
  bool has_condition = false;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const std::string& argument = arguments[i].name();
    if (argument == "running_mean" || argument == "running_var") {
      statistics |= uint64_t{1} << i;
    } else if (argument == "training" || argument == "train" || argument == "use_input_stats") {
      traits.when = static_cast<uint8_t>(i);
      has_condition = true;
    }
  }
  // Functional variants return the statistics instead of writing them.
  const bool reads =
      name.find("backward") != std::string::npos || name.find("functional") != std::string::npos;
  if (!gathers && (!has_condition || reads)) return;
  traits.statistics = statistics;
  // Some schemas declare the write for every call, although evaluation does not write.
  traits.written_inputs &= ~statistics;
}

OperatorTraits traits_of(const c10::FunctionSchema& schema) {
  OperatorTraits traits;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written_inputs |= uint64_t{1} << i;
  }
  find_statistics(schema, traits);
  traits.makes_views =
      traits.written_inputs == 0 && traits.statistics == 0 && !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    if (result.alias_info() == nullptr) traits.makes_views = false;
  }
  return traits;
}

/// An operator that a thread ran lately, in a table indexed by a hash of the name's address.
struct RecentOperator {
  const char* name = nullptr;
  OperatorTraits traits;
};
constexpr size_t kRecentOperators = 256;
constinit thread_local std::array<RecentOperator, kRecentOperators> recent_operators{};

/// Returns the operator's traits, and stores them in `recent`. Makes them from the schema only once
/// per thread, because LibTorch copies a schema to return it; after that they come from a cache,
/// which finds them by the address of the name. A registered operator's name keeps its address for
/// as long as the operator is registered.
OperatorTraits look_up_traits(const at::RecordFunction& function, RecentOperator& recent) {
  thread_local std::unordered_map<const void*, OperatorTraits> known;
  const char* const name = function.name();
  auto found = known.find(name);
  if (found == known.end()) {
    const auto schema = function.operator_schema();
    if (!schema.has_value()) {
      // A record without a schema is either autograd's second record of detach or a range that the
      // user marks. Nothing is cached for it, because the cache finds names by address, and the
      // address of a user's name may later hold another name.
      return {.makes_views = std::string_view(name) == "detach"};
    }
    found = known.emplace(name, traits_of(*schema)).first;
  }
  recent = {name, found->second};
  return found->second;
}

OperatorTraits traits_of(const at::RecordFunction& function) {
  const auto address = reinterpret_cast<uintptr_t>(function.name());
  RecentOperator& recent = recent_operators[((address >> 4) ^ (address >> 12)) % kRecentOperators];
  if (recent.name == function.name()) return recent.traits;
  return look_up_traits(function, recent);
}

/// An immutable copy of the set of watched storages, in use until the set changes.
struct Snapshot {
  explicit Snapshot(size_t count) : targets(count) {}

  Targets targets;
  std::vector<std::shared_ptr<AccessTarget>> kept_alive;
};

/// The watched storages. Process-wide, because the callback is.
class Registry {
 public:
  static Registry& get() {
    static auto* const registry = make();  // never destroyed: operators may run at exit
    return *registry;
  }

  void add(const std::vector<AccessObserver::Watched>& storages) {
    change([&](Entries& entries) {
      for (const auto& watched : storages) {
        entries.insert_or_assign(watched.storage.unsafeGetStorageImpl(), watched);
      }
    });
  }

  void remove(const std::vector<AccessObserver::Watched>& storages) {
    change([&](Entries& entries) {
      for (const auto& watched : storages) {
        entries.erase(watched.storage.unsafeGetStorageImpl());
      }
    });
  }

  /// Returns the present snapshot for the calling thread. Each thread has its own reference count,
  /// because every operator increments it, and a shared count would move between the threads'
  /// caches.
  const std::shared_ptr<const Snapshot>& now() {
    thread_local std::shared_ptr<const Snapshot> seen;
    thread_local uint64_t seen_version = 0;
    if (seen_version != version_.load(std::memory_order_acquire)) {
      std::shared_ptr<const Snapshot> present;
      {
        const std::lock_guard lock(mutex_);
        present = snapshot_;
        seen_version = version_.load(std::memory_order_relaxed);
      }
      const Snapshot* const address = present.get();
      seen.reset(address, [owner = std::move(present)](const Snapshot*) {});
    }
    return seen;
  }

 private:
  using Entries = std::unordered_map<const c10::StorageImpl*, AccessObserver::Watched>;

  static Registry* make() {
    auto* const registry = new Registry;
    hold_across_fork(registry->mutex_);
    return registry;
  }

  template <typename Change>
  void change(Change&& change);

  std::mutex mutex_;
  Entries entries_;
  std::shared_ptr<const Snapshot> snapshot_;
  std::atomic<uint64_t> version_{0};
  std::optional<GlobalCallback> callback_;
};

/// The memory of the pins that a thread released last, kept for its next operator. Nested operators
/// find no spare memory and allocate their own.
struct SparePins {
  void* block = nullptr;
  bool is_over = false;  // the thread is ending, so it keeps no memory any more
};
constinit thread_local SparePins spare_pins{};

struct SparePinsRelease {
  ~SparePinsRelease() {
    ::operator delete(std::exchange(spare_pins.block, nullptr));
    spare_pins.is_over = true;
  }
};

/// The pins of an operator. LibTorch destroys the object.
struct Pins final : at::ObserverContext {
  explicit Pins(std::shared_ptr<const Snapshot> seen) : snapshot(std::move(seen)) {}

  using Pin = std::pair<AccessTarget::Pin*, AccessTarget::Use>;
  const std::shared_ptr<const Snapshot> snapshot;  // keeps the pinned targets alive
  c10::SmallVector<Pin, 4> pins;

  static void* operator new(size_t size_bytes) {
    if (void* const block = std::exchange(spare_pins.block, nullptr)) return block;
    [[maybe_unused]] thread_local SparePinsRelease at_thread_end;
    return ::operator new(size_bytes);
  }

  static void operator delete(void* block) noexcept {
    if (spare_pins.block == nullptr && !spare_pins.is_over) {
      spare_pins.block = block;
    } else {
      ::operator delete(block);
    }
  }
};
static_assert(alignof(Pins) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__);

class PinCollector {
 public:
  explicit PinCollector(const std::shared_ptr<const Snapshot>& snapshot) : snapshot_(snapshot) {}

  void collect(const c10::IValue& value, AccessTarget::Use use) {
    if (value.isTensor()) {
      collect(*value.unsafeToTensorImpl(), use);
    } else if (value.isList() && (value.isTensorList() || value.isOptionalTensorList())) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) collect(*element.unsafeToTensorImpl(), use);
      }
    }
  }

  std::unique_ptr<Pins> take() { return std::move(pins_); }

 private:
  void collect(const c10::TensorImpl& tensor, AccessTarget::Use use) {
    if (!tensor.has_storage()) return;
    AccessTarget* const target =
        snapshot_->targets.find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (target == nullptr) return;
    if (pins_ == nullptr) pins_ = std::make_unique<Pins>(snapshot_);
    pins_->pins.emplace_back(&target->pin(use), use);
  }

  const std::shared_ptr<const Snapshot>& snapshot_;
  std::unique_ptr<Pins> pins_;
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const std::shared_ptr<const Snapshot>& snapshot = Registry::get().now();
  if (snapshot->targets.empty()) return nullptr;
  const OperatorTraits traits = traits_of(function);
  if (traits.makes_views) return nullptr;
  PinCollector collector(snapshot);
  const auto inputs = function.inputs();
  const uint64_t written = traits.written_by(inputs);
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_written = i < 64 && ((written >> i) & 1) != 0;
    collector.collect(inputs[i], is_written ? AccessTarget::Use::kWrite : AccessTarget::Use::kRead);
  }
  return collector.take();
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  auto& pinned = *static_cast<Pins*>(context);
  if (pinned.snapshot->targets.empty()) return;
  for (const auto& [pin, use] : pinned.pins) pin->unpin(use);
}

template <typename Change>
void Registry::change(Change&& change) {
  std::shared_ptr<const Snapshot> before;  // destroys the old targets after the mutex is unlocked
  const std::lock_guard lock(mutex_);
  const bool was_empty = entries_.empty();
  change(entries_);
  auto snapshot = std::make_shared<Snapshot>(entries_.size());
  for (const auto& [storage, watched] : entries_) {
    if (!watched.origin.is_here()) continue;
    snapshot->targets.add(storage, watched.target.get());
    snapshot->kept_alive.push_back(watched.target);
  }
  before = std::exchange(snapshot_, std::move(snapshot));
  version_.fetch_add(1, std::memory_order_release);
  if (was_empty && !entries_.empty()) {
    callback_.emplace(at::RecordFunctionCallback(&on_start, &on_end)
                          .needsInputs(true)
                          .scopes({at::RecordScope::FUNCTION}));
  } else if (!was_empty && entries_.empty()) {
    callback_.reset();
  }
}

}  // namespace

AccessObserver::AccessObserver(std::vector<Watched> storages) : storages_(std::move(storages)) {
  Registry::get().add(storages_);
}

AccessObserver::~AccessObserver() { Registry::get().remove(storages_); }

}  // namespace tessera::internal
