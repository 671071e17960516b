#pragma once

#include <chrono>
#include <memory>
#include <utility>

#include "tessera/core/comm/hosts/world.h"
#include "tessera/errors.h"
#include "tessera/work.h"

namespace tessera::internal::hosts {

/// Runs `body`, whose failure becomes the world's. Not on a thread that the world waits for.
template <typename Body>
auto coupled(const std::weak_ptr<World>& coupled_world, Body&& body) {
  try {
    return body();
  } catch (const CommError& error) {
    const auto world = coupled_world.lock();
    if (world != nullptr && world->origin().is_here()) world->fail(error.cause());
    throw;
  }
}

/// A message or a read, whose failure becomes the world's.
class CoupledWork final : public Work {
 public:
  CoupledWork(std::shared_ptr<Work> inner, std::weak_ptr<World> world)
      : inner_(std::move(inner)), world_(std::move(world)) {}

  bool is_completed() override { return inner_->is_completed(); }
  void wait() override {
    coupled(world_, [this] { inner_->wait(); });
  }
  bool wait_for(std::chrono::milliseconds longest) override { return inner_->wait_for(longest); }
  int source() const override { return inner_->source(); }

 private:
  const std::shared_ptr<Work> inner_;
  const std::weak_ptr<World> world_;
};

}  // namespace tessera::internal::hosts
