#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "tessera/window.h"

namespace tessera::internal::testing {

/// A window that calls a function before each read of another rank's window.
class WatchedWindow final : public Window {
 public:
  using Before = std::function<void(int rank, const at::Tensor& to, std::string_view tag)>;

  WatchedWindow(std::unique_ptr<Window> inner, Before before)
      : inner_(std::move(inner)), before_(std::move(before)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    before_(rank, to, tag);
    return inner_->start_read(rank, begin, to, tag, version);
  }
  int64_t load(int rank, int64_t index) const override { return inner_->load(rank, index); }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<Window> inner_;
  const Before before_;
};

}  // namespace tessera::internal::testing
