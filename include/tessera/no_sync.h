#pragma once

#include <memory>
#include <utility>

namespace tessera {

/// The scope of Engine::no_sync(), which makes it.
class [[nodiscard]] NoSync {
 public:
  /// `depth` counts the open scopes; a scope, and `depth` with it, may outlive the engine.
  explicit NoSync(std::shared_ptr<int> depth) : depth_(std::move(depth)) { ++*depth_; }
  NoSync(NoSync&& other) noexcept = default;
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (depth_ != nullptr) --*depth_;
  }

 private:
  std::shared_ptr<int> depth_;
};

}  // namespace tessera
