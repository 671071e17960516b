// The places where modules are looked for.
#include "tessera/core/library/module_library.h"

#include <dlfcn.h>

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/library/entry_points.h"

namespace tessera::internal {
namespace {

using ::testing::HasSubstr;

constexpr ModuleLibrary kNowhere = {.part = "test",
                                    .file = "libtessera_nowhere.so",
                                    .variable = "TESSERA_TEST_MODULE",
                                    .what = "a module",
                                    .remedy = "build it"};

std::optional<std::string> unset(const char*) { return std::nullopt; }

TEST(ModuleLibrary, IsFoundBesideTheLibraryThatLooksForIt) {
  void* const user = ::dlopen(TESSERA_BESIDE_USER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(user, nullptr) << loader_error();
  int (*ask)() = nullptr;
  EntryPoints(user).find(ask, "beside_user_ask");
  ASSERT_NE(ask, nullptr);
  EXPECT_EQ(ask(), 42);
}

TEST(ModuleLibrary, OneThatIsNowhereIsNamedWithThePlaces) {
  const auto found = open_module(kNowhere, &unset);
  ASSERT_FALSE(found.ok());
  EXPECT_THAT(std::string(found.status().message()),
              HasSubstr("[test] module: got none, looked for 'libtessera_nowhere.so' beside the "
                        "program, in ../lib and ../lib64 from there and where the loader looks "
                        "(LD_LIBRARY_PATH, ldconfig) (libtessera_nowhere.so: "));
}

}  // namespace
}  // namespace tessera::internal
