#pragma once

#include <string>

#include "tessera/engine.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"

namespace tessera {

/// Writes every rank's spans into the one file `path` of rank 0 (other ranks' paths are not looked
/// at), in Chrome's trace format with one process per rank; ui.perfetto.dev opens it. Collective,
/// blocking: two all-gathers per MiB of the longest rank's text, about 120 bytes a span; nothing
/// else may use `group` meanwhile. The file appears whole or not at all (0600; an older one of that
/// name stays until then); a link of that name is replaced, not followed, and refused where it
/// leads to what is no file. If it cannot be written, every rank throws the same c10::Error, with
/// the path and the reason.
void write_trace(ProcessGroup& group, const Trace& trace, const std::string& path);

/// As above, of what `engine` has recorded. Throws c10::Error without Options::trace.
void write_trace(Engine& engine, const std::string& path);

}  // namespace tessera
