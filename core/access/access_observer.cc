#include "tessera/core/access/access_observer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <ATen/record_function.h>
#include <absl/container/flat_hash_map.h>
#include <c10/util/SmallVector.h>
#include <torch/library.h>

#include "tessera/core/access/access_key.h"
#include "tessera/core/access/global_callback.h"
#include "tessera/core/access/operator_traits.h"

namespace tessera::internal {

// Note [Access observer]
// Before an operator runs, the observer makes the memory of the parameters that it uses ready; when
// it has ended, the observer releases them. There are two ways to notice an operator.
//
// By a key: a parameter carries a dispatch key (access_key.h), and so does every view of it.
// LibTorch calls the key's kernel instead of an operator that has such a tensor among its
// arguments. The kernel pins the targets, runs the operator below the key, and unpins. Operators
// without such a tensor cost nothing. Operators nested in one that the kernel runs are noticed too:
// they may use a parameter that is no argument of the outer one (a custom operator that captured
// it, a backward inside an operator), or write one although the outer schema says that it is read.
// This works for any model, in forward, backward and recomputation, for TorchScript and in
// at::parallel_for, because all of them use the dispatcher.
//
// By a callback: aliases that a model made before parallelize share the parameter's storage but
// carry no key. While a storage that has such aliases is watched, LibTorch calls a global
// RecordFunction callback for every operator of the process, nested ones included, which looks for
// watched storages among its inputs.
//
// An access that bypasses both (a raw pointer, a fused kernel, a tensor that set_() makes of the
// storage) throws: Note [Throwing storage].
//
// An operator's pins last until it has ended, so operators nested in it cannot free memory that it
// uses. Every operator that is noticed reads the set of watched storages, which changes rarely. So
// each thread keeps a reference to an immutable map, and compares one atomic number to see whether
// there is a newer map. The map owns its targets, and so does each operator that has pinned a
// target: an observer may be destroyed while other threads are between lookup and pin, or between
// start and end.
//
// Accesses are noticed even while every unit is whole, because the observer also detects writes
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
    if (seen_.version != version_.load(std::memory_order_acquire)) look_again();
    return *seen_.snapshot;
  }

 private:
  using Entries = std::unordered_map<const c10::StorageImpl*, AccessObserver::Watched>;

  /// What a thread has seen. A thread_local object of the user that was made earlier may read
  /// parameters in its destructor. So the pointer is not destroyed with the thread's objects but
  /// deleted by one of them, and made anew after that.
  struct Seen {
    std::shared_ptr<const Snapshot>* snapshot;
    uint64_t version;

    void reset() {
      delete std::exchange(snapshot, nullptr);
      version = 0;
    }
  };
  static constinit thread_local Seen seen_;

  void look_again() {
    struct AtThreadEnd {
      ~AtThreadEnd() { seen_.reset(); }
    };
    thread_local const AtThreadEnd at_thread_end;
    static_cast<void>(at_thread_end);
    std::shared_ptr<const Snapshot> present;
    {
      const std::lock_guard lock(mutex_);
      present = snapshot_;
      seen_.version = version_.load(std::memory_order_relaxed);
    }
    const Snapshot* const address = present.get();
    if (seen_.snapshot == nullptr) seen_.snapshot = new std::shared_ptr<const Snapshot>;
    seen_.snapshot->reset(address, [owner = std::move(present)](const Snapshot*) {});
  }

  static Registry* make() {
    auto* const registry = new Registry;
    hold_across_fork(registry->mutex_);
    return registry;
  }

  template <typename Change>
  void change(Change&& change);

  std::mutex mutex_;
  Entries entries_;
  std::shared_ptr<const Snapshot> snapshot_ = std::make_shared<Snapshot>(0);
  std::atomic<uint64_t> version_{1};  // a thread that has seen none has 0
  std::optional<GlobalCallback> callback_;
};

constinit thread_local Registry::Seen Registry::seen_ = {nullptr, 0};

/// The targets that an operator has pinned; unpins them when it ends.
class Pins {
 public:
  Pins() = default;
  ~Pins() {
    if (snapshot_ == nullptr || snapshot_->targets.empty()) return;
    for (const auto& [pin, use] : pins_) pin->unpin(use);
  }
  Pins(Pins&&) = default;
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  /// Pins the targets that an operator with these traits and arguments uses.
  void pin(const std::shared_ptr<const Snapshot>& snapshot, const OperatorTraits& traits,
           c10::ArrayRef<const c10::IValue> arguments) {
    const uint64_t written = traits.written_by(arguments);
    for (size_t i = 0; i < arguments.size(); ++i) {
      const bool is_written = i < 64 && ((written >> i) & 1) != 0;
      pin_value(snapshot, arguments[i],
                is_written ? AccessTarget::Use::kWrite : AccessTarget::Use::kRead);
    }
  }

  bool empty() const { return pins_.empty(); }

 private:
  void pin_value(const std::shared_ptr<const Snapshot>& snapshot, const c10::IValue& value,
                 AccessTarget::Use use) {
    if (value.isTensor()) {
      pin_tensor(snapshot, *value.unsafeToTensorImpl(), use);
    } else if (value.isList() && (value.isTensorList() || value.isOptionalTensorList())) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) pin_tensor(snapshot, *element.unsafeToTensorImpl(), use);
      }
    }
  }

  void pin_tensor(const std::shared_ptr<const Snapshot>& snapshot, const c10::TensorImpl& tensor,
                  AccessTarget::Use use) {
    if (!tensor.has_storage()) return;
    AccessTarget* const target =
        snapshot->targets.find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (target == nullptr) return;
    if (snapshot_ == nullptr) snapshot_ = snapshot;
    pins_.emplace_back(&target->pin(use), use);
  }

  std::shared_ptr<const Snapshot> snapshot_;  // keeps the pinned targets alive
  c10::SmallVector<std::pair<AccessTarget::Pin*, AccessTarget::Use>, 4> pins_;
};

// --- By the key ---

/// Runs instead of an operator that has a tensor with the key among its arguments.
void run_pinned(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  constexpr c10::DispatchKeySet kBelow(c10::DispatchKeySet::FULL_AFTER, kAccessKey);
  const std::shared_ptr<const Snapshot>& snapshot = Registry::get().now();
  if (snapshot->targets.empty()) return op.redispatchBoxed(keys & kBelow, stack);
  const c10::FunctionSchema& schema = op.schema();
  const OperatorTraits traits = traits_of(schema);
  // Some of these copy if they must (to, contiguous, reshape), by an operator that is noticed.
  if (traits.makes_views) return op.redispatchBoxed(keys & kBelow, stack);
  const size_t count = schema.arguments().size();
  const c10::ArrayRef<const c10::IValue> arguments(stack->data() + (stack->size() - count), count);
  Pins pins;
  pins.pin(snapshot, traits, arguments);
  op.redispatchBoxed(keys & kBelow, stack);
}

/// Operators that only make views, and are the most frequent ones on parameters. They skip the key,
/// which saves them the call; all other operators that make views come to run_pinned().
constexpr std::array<const char*, 12> kViews = {"alias",  "as_strided",    "detach",     "expand",
                                                "narrow", "permute",       "select.int", "squeeze",
                                                "t",      "transpose.int", "unsqueeze",  "view"};

/// Registers run_pinned() for the key. Returns false if other code of the process has registered a
/// kernel of its own.
bool take_key() {
  using torch::Library;
  try {
    // Never destroyed, because operators may run at exit.
    static auto* const all = new Library(Library::IMPL, "_", kAccessKey, __FILE__, __LINE__);
    all->fallback(torch::CppFunction::makeFromBoxedFunction<&run_pinned>());
    static auto* const views = new Library(Library::IMPL, "aten", kAccessKey, __FILE__, __LINE__);
    for (const char* name : kViews) views->impl(name, torch::CppFunction::makeFallthrough());
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

// --- By the callback ---

/// The pins of an operator that LibTorch records. LibTorch destroys it when the operator has ended.
struct RecordedPins final : at::ObserverContext {
  explicit RecordedPins(Pins pins) : pins(std::move(pins)) {}
  const Pins pins;
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const std::shared_ptr<const Snapshot>& snapshot = Registry::get().now();
  if (snapshot->targets.empty()) return nullptr;
  const OperatorTraits traits = traits_of(function);
  if (traits.makes_views) return nullptr;
  Pins pins;
  pins.pin(snapshot, traits, function.inputs());
  return pins.empty() ? nullptr : std::make_unique<RecordedPins>(std::move(pins));
}

template <typename Change>
void Registry::change(Change&& change) {
  std::shared_ptr<const Snapshot> before;  // destroys the old targets after the mutex is unlocked
  const std::lock_guard lock(mutex_);
  change(entries_);
  auto snapshot = std::make_shared<Snapshot>(entries_.size());
  bool needs_callback = false;
  for (const auto& [storage, watched] : entries_) {
    if (!watched.origin.is_here()) continue;
    snapshot->targets.add(storage, watched.target.get());
    snapshot->kept_alive.push_back(watched.target);
    needs_callback = needs_callback || watched.has_unkeyed;
  }
  before = std::exchange(snapshot_, std::move(snapshot));
  version_.fetch_add(1, std::memory_order_release);
  if (needs_callback && !callback_.has_value()) {
    callback_.emplace(at::RecordFunctionCallback(&on_start).needsInputs(true).scopes(
        {at::RecordScope::FUNCTION}));
  } else if (!needs_callback) {
    callback_.reset();
  }
}

}  // namespace

bool observes_keys() {
  static const bool is_taken = take_key();
  return is_taken;
}

AccessObserver::AccessObserver(std::vector<Watched> storages) : storages_(std::move(storages)) {
  Registry::get().add(storages_);
}

AccessObserver::~AccessObserver() { Registry::get().remove(storages_); }

}  // namespace tessera::internal
