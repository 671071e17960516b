#pragma once

#include <string>

#include "tessera/engine.h"
#include "tessera/process_group.h"
#include "tessera/trace.h"

namespace tessera {

/// Writes every rank's spans into one file, `path` of rank 0 (other ranks' paths are ignored), in
/// Chrome's trace format with one process per rank; ui.perfetto.dev opens it. Collective, blocking:
/// two all-gathers per MiB of text of the rank that has most text, about 120 bytes a span; nothing
/// else may use `group` meanwhile. The file (mode 0600) replaces an older one of that name
/// atomically. A symbolic link of that name is replaced, not followed; one that leads to something
/// other than a regular file is an error. If the file cannot be written, every rank throws the same
/// c10::Error, with the path and the reason.
void write_trace(ProcessGroup& group, const Trace& trace, const std::string& path);

/// The same for the spans that `engine` has recorded. Throws c10::Error if Options::trace is off.
void write_trace(Engine& engine, const std::string& path);

}  // namespace tessera
