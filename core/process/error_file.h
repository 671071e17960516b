#pragma once

#include <string>

namespace tessera::internal {

/// The files in which launchers read why a rank failed (TORCHELASTIC_ERROR_FILE): JSON with
/// "message". torchrun reads two forms. In the first, "message" is an object with the text in
/// "message" and, in "extraInfo", "timestamp" (torchrun takes that for one of PyTorch's workers).
/// In the second, "message" is the text, and "timestamp" is beside it.

/// Returns `message` as read_error_file() returns it after write_error_file(): valid UTF-8 that a
/// terminal may show, cut off after some thousand bytes.
std::string shown_message(const std::string& message);

/// Local. Returns the message in the file, of either form; "" if there is none, or it is not such a
/// file. A rank may have died while it wrote, so any content is possible.
std::string read_error_file(const std::string& path);

/// Local. Writes a file of the first form. A new file appears as a whole, because an incomplete one
/// would make torchrun itself fail. An existing file is overwritten in place, because it may be a
/// device or a mounted file. Returns the problem, naming the path; "" if there is none.
std::string write_error_file(const std::string& path, const std::string& message);

}  // namespace tessera::internal
