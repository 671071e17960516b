#pragma once

#include <string>

namespace tessera::internal {

/// Local. Whether it is a directory, and no link to one, that only this user can enter.
bool is_own_directory(const std::string& path);

}  // namespace tessera::internal
