#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tessera/engine.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/open_average.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Knows whether the model shows the average of its weights (Engine::begin_average()) and restores
/// the weights. Note [Inside an average] in average_in_use.cc. Used by one thread.
class AverageInUse {
 public:
  /// References outlive it.
  AverageInUse(EngineContext& context, TrainedParameters& trained)
      : context_(context), trained_(trained) {}
  ~AverageInUse();
  AverageInUse(const AverageInUse&) = delete;
  AverageInUse& operator=(const AverageInUse&) = delete;

  /// Makes the model show the average, after `steps` updates. The scope's end() calls `end`, which
  /// calls leave(kEnds). Collective, blocking; throws as Engine::begin_average().
  Engine::AverageScope begin(int64_t steps, std::function<void()> end);
  bool is_open() const { return open_ != nullptr; }

  /// How a collective call behaves inside the scope.
  enum class Inside : uint8_t { kRefused, kAllowed, kEnds };
  /// Called first in the collective call `call`, on all ranks. Inside a scope it is collective and
  /// blocking: it ends the average if `inside` says so or a rank has dropped its scope. Throws
  /// c10::Error on every rank if `call` is refused or a parameter was written.
  void leave(const char* call, Inside inside);

 private:
  std::string find_write() const;

  EngineContext& context_;
  TrainedParameters& trained_;
  std::shared_ptr<OpenAverage> open_;  // null outside a scope
};

}  // namespace tessera::internal
