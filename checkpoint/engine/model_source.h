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

/// The dtypes of all entries of the run's state, by name. Collective, blocking; as
/// Engine::write_state().
std::map<std::string, at::ScalarType> dtypes_of(Engine& engine);

/// A run's state whose model comes from `values` and whose rest (the optimizer's state, numbers)
/// stays: "model.<name>" of any dtype, converted to the run's (but complex numbers to real ones),
/// and from the same values the masters. A shared parameter may be there under any of its names.
/// Belongs to one thread.
class ModelSource : public StateSource {
 public:
  /// What of the model `values` may lack.
  enum class Missing : uint8_t { kIsAnError, kStays };

  /// `dtypes`: of every entry of the run, dtypes_of(). References must outlive it.
  ModelSource(const ParameterTable& table, const std::map<std::string, at::ScalarType>& dtypes,
              StateSource& values, Missing missing);

  const std::map<std::string, StateEntry>& entries() const override { return entries_; }
  bool leaves(const std::string& name) const override;
  std::string problem_of(const std::vector<StateOutline>& needed) override;
  /// Takes temporary memory for 1 MiB where values are converted.
  void read(const std::string& name, int64_t begin, const at::Tensor& to) override;

 private:
  StateSource& values_;
  const Missing missing_;
  std::map<std::string, StateEntry> entries_;
  std::map<std::string, std::string> value_of_;  ///< entry: which of values_ it is made from
};

}  // namespace tessera::internal
