#include "tessera/core/comm/nccl/communicator.h"

#include <atomic>

#include <absl/strings/str_cat.h>

namespace tessera::internal::nccl {
namespace {

Config config_for(const std::string& name, bool uses_copy_engines) {
  Config config;
  config.blocking = 0;
  // Communicators that share resources would make the lanes wait for each other.
  config.split_share = 0;
  config.comm_name = name.c_str();
  if (uses_copy_engines) config.cta_policy = kZeroCtaPolicy;
  return config;
}

}  // namespace

Communicator::Communicator(std::shared_ptr<const Api> api, std::string name, bool uses_copy_engines)
    : api_(std::move(api)), name_(std::move(name)), uses_copy_engines_(uses_copy_engines) {}

Result Communicator::init(int size, int rank, const UniqueId& id) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Config config = config_for(name_, uses_copy_engines_);
  return api_->comm_init_rank_config(&comm_, size, id, rank, &config);
}

std::optional<Result> Communicator::split(int color, int key, Communicator& child) {
  Config config = config_for(child.name_, child.uses_copy_engines_);
  return call([&](OpaqueComm* comm) {
    return api_->comm_split(comm, color, key, &child.split_off_, &config);
  });
}

OpaqueComm* Communicator::take_split_off() {
  return std::atomic_ref(split_off_).exchange(nullptr, std::memory_order_acquire);
}

void Communicator::complete_split() {
  const std::lock_guard<std::mutex> lock(mutex_);
  comm_ = take_split_off();
}

std::optional<Result> Communicator::register_memory(void* data, size_t bytes, Registration kind) {
  return call([&](OpaqueComm* comm) {
    Registered& made = registered_[data];
    return kind == Registration::kBuffer
               ? api_->comm_register(comm, data, bytes, &made.buffer)
               : api_->comm_window_register(comm, data, bytes, &made.window, kSymmetricWindow);
  });
}

bool Communicator::has_window(void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = registered_.find(data);
  return found != registered_.end() && found->second.window != nullptr;
}

void Communicator::deregister_memory(void* data) {
  const std::lock_guard<std::mutex> ending(ending_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (comm_ == nullptr) return;  // NCCL has deregistered it
  if (const auto node = registered_.extract(data)) deregister_locked(node.mapped());
}

void Communicator::deregister_locked(const Registered& registered) {
  if (registered.buffer != nullptr) api_->comm_deregister(comm_, registered.buffer);
  if (registered.window != nullptr) api_->comm_window_deregister(comm_, registered.window);
}

std::optional<Result> Communicator::poll() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return Result::kInProgress;
  if (comm_ == nullptr) return std::nullopt;
  return poll_locked();
}

Result Communicator::poll_locked() {
  Result state = Result::kInProgress;
  const Result asked = api_->comm_get_async_error(comm_, &state);
  return asked == Result::kSuccess ? state : asked;
}

std::string Communicator::error_text(Result result) {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::string text = api_->get_error_string(result);
  if (comm_ == nullptr) return text;
  const char* last = api_->get_last_error(comm_);
  if (last != nullptr && *last != '\0') absl::StrAppend(&text, ": ", last);
  return text;
}

Communicator::End Communicator::finish() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (comm_ == nullptr) return End::kDestroyed;
    if (!std::exchange(is_finalized_, true)) {
      for (const auto& [data, registered] : registered_) deregister_locked(registered);
      registered_.clear();
      api_->comm_finalize(comm_);
    }
    const Result state = poll_locked();
    if (state == Result::kInProgress) return End::kNotYet;
    if (state != Result::kSuccess) return End::kFailed;
  }
  if (OpaqueComm* const gone = take()) api_->comm_destroy(gone);
  return End::kDestroyed;
}

/// Returns NCCL's communicator, which from now on no call reaches; null if there is none.
OpaqueComm* Communicator::take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  // If a split has made this communicator and complete_split() was not called yet, the NCCL
  // communicator is still in split_off_.
  if (comm_ == nullptr) comm_ = take_split_off();
  return std::exchange(comm_, nullptr);
}

void Communicator::abort_together(const std::vector<std::shared_ptr<Communicator>>& communicators) {
  if (communicators.empty()) return;
  std::vector<std::unique_lock<std::mutex>> ending;
  for (const auto& communicator : communicators) ending.emplace_back(communicator->ending_);
  const Api& api = communicators.front()->api();
  api.group_start();
  // The abort of a parent ends a split under way, which gives the child its NCCL communicator. So
  // children, which come later, are taken after that. NCCL deregisters the memory; registered_
  // stays, because NCCL may still write to it.
  for (const auto& communicator : communicators) {
    if (OpaqueComm* const comm = communicator->take()) api.comm_abort(comm);
  }
  api.group_end();
}

}  // namespace tessera::internal::nccl
