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

/// The entries of a run's state: the same on all ranks, but for the values of the numbers.
struct StateContents {
  StateTable table;
  std::vector<StateNumber> numbers;
};

/// Moves each rank's own part of a run's state to a sink or from a source, one piece of its memory
/// at a time. This is the only way out of and into an engine's memory: Engine::write_state() and
/// read_state() use it with the caller's sink or source, StateTransfer with a state in memory. No
/// values travel between ranks. Holds no memory.
///
/// The caller sees to it that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters while load() runs.
class StreamedState {
 public:
  /// Which entries are meant; empty for all.
  using Wants = std::function<bool(const StateRegion& region, const StateSlot& slot)>;
  /// Gets ready what a source will be asked for of a region. Collective: called for the same
  /// regions in the same order on all ranks.
  using Fetch = std::function<void(const StateRegion& region)>;

  /// `group` is as large as the slices' world. References must outlive it.
  StreamedState(ProcessGroup& group, StateSlices& slices) : group_(group), slices_(slices) {}

  /// What this run has. Local; throws c10::Error as StateTable.
  StateContents contents(const EngineCounters& counters) const;
  /// The same of all ranks. Collective, blocking. Throws c10::Error on every rank that says which
  /// buffers differ in shape, in the name of `call`, and with `problem`, what this rank has against
  /// saving ("" for nothing). `arguments` are compared, too.
  StateContents agree_to_save(const char* call, const EngineCounters& counters, std::string problem,
                              std::vector<std::string> arguments = {});
  /// The same for loading, with what `partial`, which must be equal on all ranks, lets a state
  /// lack.
  StateContents agree_to_load(const EngineCounters& counters, const PartialState& partial);
  /// All entries, without ranges. Local.
  static std::vector<StateOutline> entries(const StateContents& contents);

  /// Local. Gives `sink` this rank's part of the entries that `wants`; rank 0's has the numbers and
  /// what all ranks have. Takes temporary memory for one piece only where it is not in host memory,
  /// and for buffers that are not contiguous. Throws what `sink` throws.
  void save(const StateContents& contents, StateSink& sink, const Wants& wants = {}) const;

  /// Collective, blocking. Fills this rank's slices and `counters` from `source`, but for what it
  /// leaves; bumps no version of parameters in units. Throws c10::Error on every rank, with nothing
  /// changed, that lists entries which are missing, unknown or of another shape or dtype, and what
  /// any rank's source says. What a source throws after that, this rank throws with its slices half
  /// filled. An entry in another order of memory is read whole and converted (temporary memory for
  /// it twice).
  /// `partial`, equal on all ranks, says what the source may lack besides.
  void load(StateSource& source, EngineCounters& counters, const PartialState& partial = {});
  /// The same in the name of `call`; agree_to_load() gave `contents`, whose numbers are
  /// overwritten.
  void load(const char* call, StateContents& contents, StateSource& source, const Fetch& fetch,
            EngineCounters& counters);

 private:
  StateContents agree(const EngineCounters& counters, std::string problem,
                      const PartialState* partial);

  ProcessGroup& group_;
  StateSlices& slices_;
};

}  // namespace tessera::internal
