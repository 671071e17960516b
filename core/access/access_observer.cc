#include "tessera/core/access/access_observer.h"

#include <atomic>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <ATen/core/function_schema.h>
#include <ATen/record_function.h>
#include <absl/container/flat_hash_map.h>
#include <c10/util/SmallVector.h>

namespace tessera {

// Note [Access observer]
// LibTorch calls a global RecordFunction callback at the start and the end of every operator, on
// the thread that runs it, with the operator's inputs. That is where a parameter's memory is made
// ready and released: it works for any model, in forward, backward and recomputation, for
// TorchScript and for operators inside at::parallel_for, because all of them go through the
// dispatcher. What does not (a raw pointer, a fused kernel, RecordFunctionGuard(false)) meets the
// throwing storage of FreeableBuffer.
//
// An operator's pins last until its end callback, so the operators nested in it cannot free what
// it uses. Which storages are watched is read on every operator and changed rarely: each thread
// keeps a reference to an immutable map and asks one atomic number whether there is a newer one.

namespace {

using Targets = absl::flat_hash_map<const c10::StorageImpl*, AccessTarget*>;

/// What a schema says about an operator.
struct OperatorTraits {
  bool makes_views = false;     // and reads nothing itself
  uint64_t written_inputs = 0;  // a bit per argument; arguments past the 63rd count as read
};

OperatorTraits traits_of(const c10::FunctionSchema& schema) {
  OperatorTraits traits;
  const auto& arguments = schema.arguments();
  for (size_t i = 0; i < arguments.size() && i < 64; ++i) {
    const auto* alias = arguments[i].alias_info();
    if (alias != nullptr && alias->isWrite()) traits.written_inputs |= uint64_t{1} << i;
  }
  traits.makes_views = traits.written_inputs == 0 && !schema.returns().empty();
  for (const auto& result : schema.returns()) {
    if (result.alias_info() == nullptr) traits.makes_views = false;
  }
  return traits;
}

/// Schemas are copied by every question, so each thread remembers the answers. A registered
/// operator's name has one address for as long as it is registered.
OperatorTraits traits_of(const at::RecordFunction& function) {
  thread_local std::unordered_map<const void*, OperatorTraits> known;
  const auto found = known.find(function.name());
  if (found != known.end()) return found->second;
  const auto schema = function.operator_schema();
  if (!schema.has_value()) {
    // A range of the user's own, whose name may be anywhere, or autograd's second record of detach.
    return {.makes_views = std::string_view(function.name()) == "detach"};
  }
  return known[function.name()] = traits_of(*schema);
}

/// The storages that are watched. Process-wide, as the callback is.
class Registry {
 public:
  static Registry& get() {
    static auto* const registry = new Registry;  // never destroyed: operators may run at exit
    return *registry;
  }

  void add(const std::vector<AccessObserver::Watched>& storages) {
    change([&](Entries& entries) {
      for (const auto& watched : storages) entries[watched.storage.get()] = watched;
    });
  }

  void remove(const std::vector<AccessObserver::Watched>& storages) {
    change([&](Entries& entries) {
      for (const auto& watched : storages) entries.erase(watched.storage.get());
    });
  }

  /// As of now, for the calling thread.
  const Targets& targets() {
    thread_local std::shared_ptr<const Targets> seen;
    thread_local uint64_t seen_version = 0;
    if (seen_version != version_.load(std::memory_order_acquire)) {
      const std::lock_guard lock(mutex_);
      seen = targets_;
      seen_version = version_.load(std::memory_order_relaxed);
    }
    return *seen;
  }

 private:
  using Entries = std::unordered_map<const c10::StorageImpl*, AccessObserver::Watched>;

  template <typename Change>
  void change(Change&& change);

  std::mutex mutex_;
  Entries entries_;
  std::shared_ptr<const Targets> targets_;
  std::atomic<uint64_t> version_{0};
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

struct Pins final : at::ObserverContext {
  using Pin = std::pair<AccessTarget*, AccessTarget::Use>;
  c10::SmallVector<Pin, 4> pins;
};

class PinCollector {
 public:
  explicit PinCollector(const Targets& targets) : targets_(targets) {}

  void collect(const c10::IValue& value, AccessTarget::Use use) {
    if (value.isTensor()) {
      collect(*value.unsafeToTensorImpl(), use);
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) collect(*element.unsafeToTensorImpl(), use);
      }
    }
  }

  std::unique_ptr<Pins> take() { return std::move(pins_); }

 private:
  void collect(const c10::TensorImpl& tensor, AccessTarget::Use use) {
    if (!tensor.has_storage()) return;
    const auto found = targets_.find(tensor.unsafe_storage().unsafeGetStorageImpl());
    if (found == targets_.end()) return;
    if (pins_ == nullptr) pins_ = std::make_unique<Pins>();
    found->second->pin(use);
    pins_->pins.emplace_back(found->second, use);
  }

  const Targets& targets_;
  std::unique_ptr<Pins> pins_;
};

std::unique_ptr<at::ObserverContext> on_start(const at::RecordFunction& function) {
  const Targets& targets = Registry::get().targets();
  if (targets.empty()) return nullptr;
  const OperatorTraits traits = traits_of(function);
  if (traits.makes_views) return nullptr;
  PinCollector collector(targets);
  const auto inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_written = i < 64 && ((traits.written_inputs >> i) & 1) != 0;
    collector.collect(inputs[i], is_written ? AccessTarget::Use::kWrite : AccessTarget::Use::kRead);
  }
  return collector.take();
}

void on_end(const at::RecordFunction&, at::ObserverContext* context) {
  if (context == nullptr) return;
  for (const auto& [target, use] : static_cast<Pins*>(context)->pins) target->unpin(use);
}

template <typename Change>
void Registry::change(Change&& change) {
  const std::lock_guard lock(mutex_);
  const bool was_empty = entries_.empty();
  change(entries_);
  auto targets = std::make_shared<Targets>();
  for (const auto& [storage, watched] : entries_) (*targets)[storage] = watched.target;
  targets_ = std::move(targets);
  version_.fetch_add(1, std::memory_order_release);
  if (was_empty && !entries_.empty()) {
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&on_start, &on_end)
                                        .needsInputs(true)
                                        .scopes({at::RecordScope::FUNCTION}));
  } else if (!was_empty && entries_.empty()) {
    at::removeCallback(handle_);
  }
}

}  // namespace

AccessObserver::AccessObserver(std::vector<Watched> storages) : storages_(std::move(storages)) {
  Registry::get().add(storages_);
}

AccessObserver::~AccessObserver() { Registry::get().remove(storages_); }

}  // namespace tessera
