// Looks for the module from a library, not from the program.
#include <optional>
#include <string>

#include "tessera/core/library/entry_points.h"
#include "tessera/core/library/module_library.h"

/// Returns the module's answer; -1 if the module is not found.
extern "C" int beside_user_ask() {
  const tessera::internal::ModuleLibrary module = {.part = "test",
                                                   .file = "libbeside_module.so",
                                                   .variable = "TESSERA_TEST_MODULE",
                                                   .what = "a module",
                                                   .remedy = "build it"};
  const auto found = tessera::internal::open_module(
      module, [](const char*) -> std::optional<std::string> { return std::nullopt; });
  if (!found.ok()) return -1;
  int (*answer)() = nullptr;
  tessera::internal::EntryPoints(*found).find(answer, "beside_module_answer");
  return answer == nullptr ? -1 : answer();
}
