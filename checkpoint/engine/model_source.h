#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/parameter_table.h"
#include "tessera/state_stream.h"

namespace tessera {
class Engine;
}  // namespace tessera

namespace tessera::internal {

/// Collective, blocking. Returns the dtypes of all entries of the run's state, by name. Throws as
/// Engine::write_state().
std::map<std::string, at::ScalarType> dtypes_of(Engine& engine);

/// A source that replaces a run's model by `values` and leaves the rest of the state (the
/// optimizer's state, numbers) as it is. Entries "model.<name>" of `values` may have any dtype and
/// are converted to the dtype that the run has for them (except complex to real). Masters are made
/// from the same values. A shared parameter may be stored under any of its names. Belongs to one
/// thread.
class ModelSource : public StateSource {
 public:
  /// Treatment of parts of the model that `values` lacks.
  enum class Missing : uint8_t { kIsAnError, kStays };

  /// `dtypes` comes from dtypes_of(). `values` must outlive this.
  ModelSource(const ParameterTable& table, const std::map<std::string, at::ScalarType>& dtypes,
              StateSource& values, Missing missing);

  const std::map<std::string, StateEntry>& entries() const override { return entries_; }
  bool leaves(const std::string& name) const override;
  std::string problem_of(const std::vector<StateOutline>& needed) override;
  /// Takes 1 MiB of temporary memory if values are converted.
  void read(const std::string& name, int64_t begin, const at::Tensor& to) override;

 private:
  StateSource& values_;
  const Missing missing_;
  std::map<std::string, StateEntry> entries_;
  /// For each of entries_: the name of the entry of values_ from which it is read.
  std::map<std::string, std::string> value_of_;
};

}  // namespace tessera::internal
