#pragma once

#include <string>

namespace tessera::internal {

/// Launchers read from a file (TORCHELASTIC_ERROR_FILE) why a rank failed. The file is JSON with
/// the key "message", in one of two forms that torchrun reads. In the first form, that of PyTorch's
/// own workers, the value of "message" is an object, which has the text in "message" and a
/// "timestamp" in "extraInfo". In the second form the value of "message" is the text, and
/// "timestamp" is beside it.

/// Returns what read_error_file() would return after write_error_file() with this `message`: UTF-8
/// that a terminal may show, cut off after some thousand bytes, perhaps inside a character.
std::string shown_message(const std::string& message);

/// Local. Returns the message in the file, of either form; "" if there is none, or it is not such a
/// file. A rank may have died while it wrote, so any content is possible.
std::string read_error_file(const std::string& path);

/// Local. Writes a file of the first form. A new file appears as a whole, because an incomplete one
/// would make torchrun itself fail. An existing file is overwritten in place, because it may be a
/// device or a mounted file. Returns the problem, naming the path; "" if there is none.
std::string write_error_file(const std::string& path, const std::string& message);

}  // namespace tessera::internal
