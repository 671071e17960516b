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
  /// References must outlive it.
  AverageInUse(EngineContext& context, TrainedParameters& trained)
      : context_(context), trained_(trained) {}
  ~AverageInUse();
  AverageInUse(const AverageInUse&) = delete;
  AverageInUse& operator=(const AverageInUse&) = delete;

  /// Makes the model show the average now. `steps`: the updates made so far, for the error message.
  /// The scope's end() calls `end`, which calls leave(kEnds). Collective, blocking; throws as
  /// Engine::begin_average() does.
  Engine::AverageScope begin(int64_t steps, std::function<void()> end);
  bool is_open() const { return open_ != nullptr; }

  /// What a collective call does inside the scope: kRefused throws, kAllowed runs while the model
  /// shows the average, kEnds first ends the average.
  enum class Inside : uint8_t { kRefused, kAllowed, kEnds };
  /// Called first in the collective call `call`, on all ranks. Inside a scope it is collective and
  /// blocking: it ends the average if on every rank `inside` is kEnds or the scope was dropped. It
  /// refuses the call (c10::Error on every rank; the average stays) in three cases: that condition
  /// holds on some ranks only; `inside` is kRefused on a rank that is still in its scope; or a
  /// scope of ParameterAccess is open where the average would end. If a parameter was written in
  /// the average that it ends, it throws, too, but the average has ended.
  void leave(const char* call, Inside inside);

 private:
  std::string find_write() const;

  EngineContext& context_;
  TrainedParameters& trained_;
  std::shared_ptr<OpenAverage> open_;  // null outside a scope
};

}  // namespace tessera::internal
