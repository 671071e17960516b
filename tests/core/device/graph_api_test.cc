// Finding the module for graphs, the errors if it is missing or of another version, and the symbols
// of the built one.
#include "tessera/core/device/graph_api.h"

#include <cstdio>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/core/device/cuda_library.h"

namespace tessera::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class GraphApiTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto library = load_cuda_library([](const char* name) {
      return std::string(name) == "TESSERA_CUDA_LIBRARIES" ? std::optional<std::string>(FAKE_CUDA)
                                                           : std::nullopt;
    });
    ASSERT_TRUE(library.ok()) << library.status();
  }

  static absl::StatusOr<std::shared_ptr<const GraphApi>> load(std::optional<std::string> path) {
    return load_graph_api([path](const char* name) {
      return std::string(name) == "TESSERA_CUDA_GRAPH_MODULE" ? path : std::nullopt;
    });
  }

  static std::string error_of(const std::string& path) {
    const auto api = load(path);
    return api.ok() ? "none" : std::string(api.status().message());
  }
};

TEST_F(GraphApiTest, AMissingModuleIsNamedWithItsRemedy) {
  EXPECT_THAT(error_of("/no/such/libtessera_cuda_graph.so"),
              AllOf(HasSubstr("[graph] module: got none, looked for "
                              "'/no/such/libtessera_cuda_graph.so' as TESSERA_CUDA_GRAPH_MODULE "
                              "says (/no/such/libtessera_cuda_graph.so: cannot open shared object "
                              "file"),
                    HasSubstr("expected Tessera's module for CUDA graphs; build Tessera where "
                              "CMake finds the CUDA Toolkit's headers"),
                    HasSubstr("or train without graphs")));
}

TEST_F(GraphApiTest, ALibraryThatLacksEntryPointsNamesThemAll) {
  EXPECT_THAT(
      error_of("libm.so.6"),
      HasSubstr("libm.so.6' without tessera_cuda_graph_interface_version, "
                "tessera_cuda_graph_torch_version, tessera_cuda_graph_error_text, "
                "tessera_cuda_graph_make, tessera_cuda_graph_begin, tessera_cuda_graph_end, "
                "tessera_cuda_graph_replay, tessera_cuda_graph_destroy, expected Tessera's module "
                "for CUDA graphs; "));
}

TEST_F(GraphApiTest, AModuleOfAnotherVersionIsNamedWithBothVersions) {
  EXPECT_THAT(error_of(OLD_CUDA_GRAPH),
              AllOf(HasSubstr("[graph] module: got interface -7 at '"),
                    HasSubstr("', expected interface 1; build Tessera where")));
  EXPECT_THAT(error_of(OTHER_TORCH_CUDA_GRAPH),
              AllOf(HasSubstr("' for LibTorch 1.0.0, expected one for LibTorch "),
                    HasSubstr("with LibTorch ")));
}

TEST_F(GraphApiTest, TheModuleThatIsNamedIsOpened) {
  const auto api = load(FAKE_CUDA_GRAPH);
  ASSERT_TRUE(api.ok()) << api.status();
  EXPECT_EQ((*api)->path, FAKE_CUDA_GRAPH);
  EXPECT_EQ((*api)->interface_version(), cuda_graph::kInterfaceVersion);
}

#ifdef CUDA_GRAPH

// The fake has no at::cuda::CUDAGraph. Opening the module gets as far as the loader's search for
// its symbols in the open libtorch_cuda.so, and the first missing one is named.
TEST_F(GraphApiTest, TheBuiltModuleTakesItsSymbolsFromTheCudaHalfThatIsOpen) {
  EXPECT_THAT(error_of(CUDA_GRAPH),
              AllOf(HasSubstr("[graph] module: got none"), HasSubstr("undefined symbol: "),
                    ::testing::Not(HasSubstr("cannot open shared object file"))));
}

// It is found next to the programs, in ../lib.
TEST_F(GraphApiTest, TheBuiltModuleIsLookedForBesideThePrograms) {
  const auto api = load(std::nullopt);
  ASSERT_FALSE(api.ok());
  EXPECT_THAT(std::string(api.status().message()),
              AllOf(HasSubstr(std::string(CUDA_GRAPH) + ": undefined symbol: "),
                    HasSubstr("looked for 'libtessera_cuda_graph.so' beside the program")));
}

std::string output_of(const std::string& command) {
  std::FILE* pipe = ::popen(command.c_str(), "r");
  std::string output;
  for (int next = std::fgetc(pipe); next != EOF; next = std::fgetc(pipe)) {
    output += static_cast<char>(next);
  }
  ::pclose(pipe);
  return output;
}

TEST_F(GraphApiTest, TheBuiltModuleNeedsTheCudaHalfByNameAndNothingElseOfCuda) {
  const std::string needed = output_of("readelf -d " CUDA_GRAPH);
  EXPECT_THAT(needed, HasSubstr("NEEDED)             Shared library: [libtorch_cuda.so]"));
  EXPECT_THAT(needed, ::testing::Not(HasSubstr("libcudart")));
  EXPECT_THAT(needed, ::testing::Not(HasSubstr("libcuda.so")));
  EXPECT_THAT(needed, ::testing::Not(HasSubstr("RUNPATH")));
}

TEST_F(GraphApiTest, TheBuiltModuleExportsItsInterfaceAndNothingElse) {
  EXPECT_EQ(output_of("nm -D --defined-only --format=just-symbols " CUDA_GRAPH " | sort"),
            "tessera_cuda_graph_begin\n"
            "tessera_cuda_graph_destroy\n"
            "tessera_cuda_graph_end\n"
            "tessera_cuda_graph_error_text\n"
            "tessera_cuda_graph_interface_version\n"
            "tessera_cuda_graph_make\n"
            "tessera_cuda_graph_replay\n"
            "tessera_cuda_graph_torch_version\n");
}

#endif

}  // namespace
}  // namespace tessera::internal
