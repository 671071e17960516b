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
  std::vector<Range> ranges;  ///< disjoint; elements are counted in the memory order of `form`
};

/// Receives a rank's part of the state, tensor by tensor, from Engine::write_state(). Local; if a
/// call throws, write_state() throws the same, and the engine is as before.
class StateSink {
 public:
  virtual ~StateSink() = default;

  /// Called once, before any write(). `entries` has every entry of the run, in the same order on
  /// all ranks, each with the ranges that this rank will write, possibly none. The ranges of all
  /// ranks together cover each element once.
  virtual void begin(const std::vector<StateOutline>& entries) = 0;

  /// Takes the elements [begin, begin + numel) of entries[entry]: one of the ranges given to
  /// begin(). `values`: [numel], contiguous, CPU, of the entry's dtype. They are the engine's own
  /// memory, and valid until the call returns. Entries without elements are not written. Entries of
  /// the widest dtype come first; entries of one dtype, and the ranges of an entry, come in the
  /// order of begin().
  virtual void write(size_t entry, int64_t begin, const at::Tensor& values) = 0;
};

/// Gives Engine::read_state() a rank's part of a state, range by range. Every call is local.
class StateSource {
 public:
  virtual ~StateSource() = default;

  /// Returns the source's entries, by name: sizes, strides, dtype; no pieces.
  virtual const std::map<std::string, StateEntry>& entries() const = 0;

  /// Called for an entry `name` of the run that entries() does not have. Returns true if the run
  /// keeps its own value of this entry; if false, the missing entry is an error. Equal on all
  /// ranks. If a source has a parameter but not its master, note that the next step overwrites the
  /// parameter with the master's value.
  virtual bool leaves(const std::string& name) const {
    static_cast<void>(name);
    return false;
  }

  /// Returns why this rank cannot read `needed`; "" if it can. `needed` is all that the rank will
  /// read. Called once, before anything is read or changed.
  virtual std::string problem_of(const std::vector<StateOutline>& needed) = 0;

  /// Copies `to.numel()` elements of the entry `name`, from element `begin` on, to `to`: [numel],
  /// contiguous, CPU, of the entry's dtype. Elements are counted in the memory order of the entry's
  /// strides in entries().
  virtual void read(const std::string& name, int64_t begin, const at::Tensor& to) = 0;
};

}  // namespace tessera
