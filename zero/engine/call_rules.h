#pragma once

#include <string>

#include "tessera/zero/engine/backward.h"
#include "tessera/zero/engine/engine_context.h"
#include "tessera/zero/engine/trained_parameters.h"

namespace tessera::internal {

/// Which calls of an engine may be made now. Local; each throws c10::Error that names the call, or
/// the engine's failure.
class CallRules {
 public:
  /// References outlive it.
  CallRules(EngineContext& context, TrainedParameters& trained, const Backward& backward)
      : context_(context), trained_(trained), backward_(backward) {}

  /// Why most calls may not be made here: inside backward, a hook, modify_parameters() or a
  /// function that the engine runs; "" if they may.
  std::string misplaced() const;
  void require_outside_backward(const char* call) const;
  /// The engine has not failed.
  void require_usable() const;
  /// The same of a failure that loading a state does not mend.
  void require_loadable() const;
  /// For calls that read or write parameters, or drop gradients.
  void require_no_update(const char* call) const;
  /// The same, outside backward.
  void require_between_steps(const char* call) const;

 private:
  void take_failed_gather() const;

  EngineContext& context_;
  TrainedParameters& trained_;
  const Backward& backward_;
};

}  // namespace tessera::internal
