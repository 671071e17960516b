#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/flat_layout.h"
#include "tessera/state_dict.h"

namespace tessera {

/// One entry of a run's state, and some of its elements.
struct StateOutline {
  std::string name;           ///< as in StateDict
  StateEntry form;            ///< sizes, strides, dtype; no pieces
  std::vector<Range> ranges;  ///< disjoint, in the memory order of `form`
};

/// Receives a rank's part of the state, tensor by tensor, from Engine::write_state(). Local; if a
/// call throws, write_state() throws the same, and the engine is as before.
class StateSink {
 public:
  virtual ~StateSink() = default;

  /// Called once, before any write(), with every entry of the run, in the same order on all ranks,
  /// each with the ranges that this rank will write, possibly none. Over all ranks they cover each
  /// element once.
  virtual void begin(const std::vector<StateOutline>& entries) = 0;

  /// Takes the elements [begin, begin + numel) of entries[entry], one of its ranges. `values`:
  /// [numel], contiguous, CPU, of the entry's dtype; the engine's own memory, valid until the call
  /// returns. Entries without elements are not written. The widest dtypes come first, and otherwise
  /// entries and ranges come in the order of begin().
  virtual void write(size_t entry, int64_t begin, const at::Tensor& values) = 0;
};

/// Gives Engine::read_state() a rank's part of a state, range by range. Every call is local.
class StateSource {
 public:
  virtual ~StateSource() = default;

  /// Returns the source's entries, by name: sizes, strides, dtype; no pieces.
  virtual const std::map<std::string, StateEntry>& entries() const = 0;

  /// Returns true if the run keeps its own value of the entry `name`, which is not in entries();
  /// false makes its absence an error. Equal on all ranks. If a source has a parameter but not its
  /// master, note that the next step overwrites the parameter with the master's value.
  virtual bool leaves(const std::string& name) const {
    static_cast<void>(name);
    return false;
  }

  /// Returns why `needed`, all that this rank will read, cannot be read; "" if it can. Called once,
  /// before anything is read or changed.
  virtual std::string problem_of(const std::vector<StateOutline>& needed) = 0;

  /// Copies the elements from `begin` on, in the memory order that entries() says, to `to`:
  /// [numel], contiguous, CPU, of the entry's dtype.
  virtual void read(const std::string& name, int64_t begin, const at::Tensor& to) = 0;
};

}  // namespace tessera
