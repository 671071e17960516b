#include "tessera/core/library/entry_points.h"

#include <dlfcn.h>
#include <link.h>

namespace tessera::internal {

void* EntryPoints::address(const char* name) const { return ::dlsym(library_, name); }

std::string path_of_library(void* library) {
  link_map* map = nullptr;
  if (library == nullptr || ::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return "";
  return map->l_name;
}

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace tessera::internal
