#pragma once

#include <string>
#include <vector>

#include "tessera/process_group.h"
#include "tessera/state_stream.h"
#include "tessera/zero/state/state_numbers.h"
#include "tessera/zero/state/state_slices.h"
#include "tessera/zero/state/state_table.h"

namespace tessera::internal {

/// Moves each rank's own part of a run's state to a sink or from a source, one piece of its memory
/// at a time: what Engine::write_state and read_state do. No values travel between ranks. Holds no
/// memory.
///
/// The caller sees to it that nothing is being all-gathered, gathered or reduced, and that no rank
/// reads parameters while load() runs.
class StreamedState {
 public:
  /// `group` is as large as the slices' world. References must outlive it.
  StreamedState(ProcessGroup& group, StateSlices& slices) : group_(group), slices_(slices) {}

  /// What a rank is about to save.
  struct Saving {
    StateTable table;
    std::vector<StateNumber> numbers;
  };
  /// Collective, blocking. Throws c10::Error on every rank that says which buffers differ in shape,
  /// and with `problem`, what this rank has against it, "" for nothing.
  Saving agree_to_save(const EngineCounters& counters, std::string problem);
  /// All entries of what agree_to_save() returned, without ranges. Local.
  static std::vector<StateOutline> entries(const Saving& saving);

  /// Local. Gives `sink` this rank's part; rank 0's has the numbers and what all ranks have. Takes
  /// temporary memory for one piece only where it is not in host memory, and for buffers that are
  /// not contiguous. Throws what `sink` throws.
  void save(const Saving& saving, StateSink& sink) const;

  /// Collective, blocking. Fills this rank's slices and `counters` from `source`, but for what it
  /// leaves. Throws c10::Error
  /// on every rank, with nothing changed, that lists entries which are missing, unknown or of
  /// another shape or dtype, and what any rank's source says. What a source throws after that, this
  /// rank throws with its slices half filled. An entry in another order of memory is read whole and
  /// converted (temporary memory for it twice).
  /// `partial`, equal on all ranks, says what the source may lack besides.
  void load(StateSource& source, EngineCounters& counters, const PartialState& partial = {});

 private:
  ProcessGroup& group_;
  StateSlices& slices_;
};

}  // namespace tessera::internal
