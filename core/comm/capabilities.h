#pragma once

namespace tessera {

/// What a group can do; equal on all its ranks. Code asks for this and never for a backend by name.
struct Capabilities {
  /// Collectives run beside the caller, so that starting them early overlaps them with what the
  /// caller does; otherwise they run in the call.
  bool in_background = false;
  /// Work::wait() blocks the host until results are there, and is_completed() tells it when: the
  /// tensors are the host's. Otherwise results come on a stream of the device, and only what is
  /// queued behind wait() knows them.
  bool completes_on_host = true;
  /// ProcessGroup::all_gather_on_host() goes by a channel beside the group's own collectives.
  bool has_host_channel = false;
  /// Ranks read each other's memory without the owner taking part: make_window() works.
  bool one_sided_reads = false;
};

}  // namespace tessera
