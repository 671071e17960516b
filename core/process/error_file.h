#pragma once

#include <string>

namespace tessera::internal {

/// The files by which launchers learn why a rank failed (TORCHELASTIC_ERROR_FILE): JSON with
/// "message". torchrun reads two forms of it. It is an object with "message" and, in "extraInfo",
/// "timestamp" (torchrun takes that for one of PyTorch's workers), or the text, with "timestamp"
/// beside it.

/// Local. Returns the message in the file, of either form; "" if there is none, or it is not such a
/// file. A rank may have died while it wrote, so any content is possible.
std::string read_error_file(const std::string& path);

/// Local. Writes a file of the first form. A new file appears as a whole, because a part of one
/// would end torchrun itself. A file that is there is written in place: it may be a device or a
/// mounted file. Returns the problem, naming the path; "" if there is none.
std::string write_error_file(const std::string& path, const std::string& message);

}  // namespace tessera::internal
