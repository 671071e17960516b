#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tessera/process_group.h"
#include "tessera/state_stream.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// The entries of a run's state, the same on all ranks except for the values of the numbers.
struct StateContents {
  StateTable table;
  std::vector<StateNumber> numbers;
};

/// Moves each rank's own part of a run's state to a sink or from a source, one piece of its memory
/// at a time. This is the only way out of and into an engine's memory: Engine::write_state() and
/// read_state() use it with the caller's sink or source, StateTransfer with a state in memory. No
/// values travel between ranks. Holds no memory.
///
/// The caller makes sure that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters during load().
class StreamedState {
 public:
  /// Selects entries: true for those that are wanted. An empty function selects all.
  using Wants = std::function<bool(const StateRegion& region, const StateSlot& slot)>;
  /// Makes a region ready to be read from the source. Collective: called for the same regions in
  /// the same order on all ranks.
  using Fetch = std::function<void(const StateRegion& region)>;

  /// `slices` must have been made for as many ranks as `group` has. References must outlive it.
  StreamedState(ProcessGroup& group, StateSlices& slices) : group_(group), slices_(slices) {}

  /// Returns the entries of this run's state. Local; throws c10::Error as StateTable's constructor
  /// does.
  StateContents contents(const EngineCounters& counters) const;
  /// Returns contents() after all ranks have agreed to save. Collective, blocking. Throws
  /// c10::Error on every rank if buffers differ in shape or `arguments` differ (the error names
  /// `call`), or if any rank has a `problem` with saving ("" for none).
  StateContents agree_to_save(const char* call, const EngineCounters& counters, std::string problem,
                              std::vector<std::string> arguments = {});
  /// Like agree_to_save(), but for loading a state that may lack the entries that `partial` allows.
  /// `partial` is equal on all ranks.
  StateContents agree_to_load(const EngineCounters& counters, const PartialState& partial);
  /// Returns all entries, without ranges. Local.
  static std::vector<StateOutline> entries(const StateContents& contents);

  /// Gives `sink` this rank's part of the entries that `wants` selects; rank 0 also gives the
  /// numbers and the tensors that all ranks have. Takes temporary memory for one such tensor, or
  /// one part that is not in host memory, at a time. Throws what `sink` throws. Local.
  void save(const StateContents& contents, StateSink& sink, const Wants& wants = {}) const;

  /// Fills this rank's slices and `counters` from `source`, except for entries that the source
  /// leaves (StateSource::leaves()). Does not bump the versions of parameters in units. Collective,
  /// blocking. Throws c10::Error on every rank, with nothing changed, if entries are missing,
  /// unknown or of another shape or dtype, or if any rank's source reports a problem. If a source
  /// throws later, only its rank throws that error, with its slices half filled. An entry in
  /// another memory order is read whole and converted, which takes temporary memory of twice its
  /// size. `partial`, equal on all ranks, says what else the source may lack.
  void load(StateSource& source, EngineCounters& counters, const PartialState& partial = {});
  /// Like load() above, but its errors name `call`, and `contents` is what agree_to_load() has
  /// returned. Overwrites the numbers in `contents`.
  void load(const char* call, StateContents& contents, StateSource& source, const Fetch& fetch,
            EngineCounters& counters);

 private:
  StateContents agree(const EngineCounters& counters, std::string problem,
                      const PartialState* partial);

  ProcessGroup& group_;
  StateSlices& slices_;
};

}  // namespace tessera::internal
