#pragma once

#include <string>

namespace tessera::internal {

/// The files by which torchrun learns why a worker failed (TORCHELASTIC_ERROR_FILE): JSON with
/// "message", a text or an object that has one, and a "timestamp" in seconds.

/// Local. The message in the file; "" if there is none, or it is not such a file. A worker may have
/// died while it wrote, so nothing is expected of the content.
std::string read_error_file(const std::string& path);

/// Local. Writes one in place: the path may be that of a device or of a mounted file. Returns the
/// problem, naming the path; "" if there is none.
std::string write_error_file(const std::string& path, const std::string& message);

}  // namespace tessera::internal
