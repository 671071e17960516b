#pragma once

#include <string>

#include "tessera/optim/slices/flat_optimizer.h"
#include "tessera/parameter_table.h"
#include "tessera/zero/engine/dot_grad_views.h"
#include "tessera/zero/parameters/parameter_access.h"
#include "tessera/zero/parameters/parameter_store.h"
#include "tessera/zero/step/update_in_backward.h"

namespace tessera::internal {

/// Checks parameters, gradients and hyper-parameters, before an update, for changes that users must
/// not make. The result goes into this rank's report for the vote, so all ranks refuse together.
class MisuseCheck {
 public:
  /// References and `early_update` must outlive it. `early_update` is null unless backward updates
  /// parameters.
  MisuseCheck(const ParameterTable& table, const ParameterStore& store,
              const ParameterAccess& access, const DotGradViews& dot_grads,
              const FlatOptimizer& optimizer, const UpdateInBackward* early_update)
      : table_(table),
        store_(store),
        access_(access),
        dot_grads_(dot_grads),
        optimizer_(optimizer),
        early_update_(early_update) {}

  /// Returns "<what>; <remedy>" for the first problem found; "" if none. Local.
  std::string before_step() const;
  /// Called before every backward that does not update: like before_step(), but finds only writes
  /// to parameters. It must be cheap, so it checks version counters and first elements, not page
  /// tables. Allocates nothing if it finds no write.
  std::string written() const;
  /// Like before_step(), but called before a backward that updates. `in_no_sync`: the backward is
  /// inside no_sync().
  std::string before_updating_backward(bool in_no_sync) const;

  /// Like before_step(), but called before `call`, which is made between steps and rebuilds the
  /// engine.
  std::string before_change(const char* call) const { return find(call); }

 private:
  std::string find(const char* call) const;

  const ParameterTable& table_;
  const ParameterStore& store_;
  const ParameterAccess& access_;
  const DotGradViews& dot_grads_;
  const FlatOptimizer& optimizer_;
  const UpdateInBackward* const early_update_;
};

}  // namespace tessera::internal
