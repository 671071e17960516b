// Finding LibTorch's CUDA half, and the errors if it cannot be used. Each case has its own process,
// because LibTorch looks for CUDA only once.
#include "tessera/core/device/cuda_library.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/headeronly/version.h>

#include "tessera/core/device/cuda_device.h"
#include "tessera/core/process/error_text.h"
#include "tessera/tests/support/rank_processes.h"
#include "tessera/tests/support/temporary_directory.h"

namespace tessera::internal {
namespace {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RankProcessBody;

const RankProcessBody kLoad("load", [] {
  const auto library = load_cuda_library();
  std::printf("%s\n",
              library.ok()
                  ? (library->path + " has " + std::to_string(library->device_count)).c_str()
                  : std::string(library.status().message()).c_str());
});

const RankProcessBody kLoadTwice("load_twice", [] {
  const auto first = load_cuda_library();
  const auto again = load_cuda_library([](const char*) { return "/no/such/folder"; });
  std::printf("%s\n", first.ok() && again.ok() && first->path == again->path ? "the same" : "no");
});

const RankProcessBody kLoadAfterSeed("load_after_seed", [] {
  at::manual_seed(1);
  std::printf("%s\n", std::string(load_cuda_library().status().message()).c_str());
});

const RankProcessBody kLoadAfterCount("load_after_count", [] {
  at::globalContext().hasCUDA();
  std::printf("%s\n", std::string(load_cuda_library().status().message()).c_str());
});

const RankProcessBody kLoadAfterBackward("load_after_backward", [] {
  at::ones({1}).requires_grad_().sum().backward();
  std::printf("%s\n", std::string(load_cuda_library().status().message()).c_str());
});

/// Does not ask for CUDA: a model may be built before the library is loaded.
const RankProcessBody kLoadAfterModel("load_after_model", [] {
  const at::Tensor weight = at::randn({4, 4}).requires_grad_();
  const at::Tensor loss = at::linear(at::ones({2, 4}), weight).sum();
  EXPECT_TRUE(loss.requires_grad());
  std::printf("%s\n", load_cuda_library().ok() ? "loaded" : "no");
});

const RankProcessBody kDeviceWithoutLibrary("device_without_library", [] {
  try {
    CudaDevice device(0);
  } catch (const c10::Error& error) {
    std::printf("%s\n", error_text(error).c_str());
  }
});

using Variables = std::map<std::string, std::string>;

std::string output_of(const std::string& body, Variables environment) {
  const auto results =
      testing::run_rank_processes(1, body, {.environment = std::move(environment)});
  EXPECT_EQ(results[0].exit_code, 0) << results[0].output;
  return results[0].output;
}

const auto kHasRemedy = AllOf(HasSubstr("run cmake/bootstrap.sh --cuda, or set "
                                        "TESSERA_CUDA_LIBRARIES to the folder"),
                              HasSubstr("LibTorch " TORCH_VERSION));

TEST(CudaLibrary, IsTakenFromTheFirstFolderThatHasOne) {
  EXPECT_EQ(output_of("load", {{"TESSERA_CUDA_LIBRARIES", "/no/such/folder:" FAKE_CUDA ":/tmp"}}),
            FAKE_CUDA "/libtorch_cuda.so has 3\n");
}

TEST(CudaLibrary, IsFoundWhereTheLoaderLooks) {
  EXPECT_EQ(output_of("load", {{"LD_LIBRARY_PATH", FAKE_CUDA}}),
            FAKE_CUDA "/libtorch_cuda.so has 3\n");
}

TEST(CudaLibrary, OnceLoadedStays) {
  EXPECT_EQ(output_of("load_twice", {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA}}), "the same\n");
}

TEST(CudaLibrary, AMissingOneIsNamedWithThePlacesAndTheRemedy) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", "/no/such/folder:/tmp"}}),
              AllOf(HasSubstr("[cuda] library: got none, looked for libtorch_cuda.so in "
                              "'/no/such/folder', '/tmp' as TESSERA_CUDA_LIBRARIES says, expected"),
                    kHasRemedy));
}

TEST(CudaLibrary, OneThatDoesNotFitNamesBothAndTheSymbol) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", UNFIT_CUDA}}),
              AllOf(HasSubstr("[cuda] library: got '" UNFIT_CUDA
                              "/libtorch_cuda.so', which does not fit '"),
                    HasSubstr("libtorch_cpu.so' ("), HasSubstr("undefined symbol"),
                    HasSubstr("only_another_version_of_libtorch_has_this"), kHasRemedy));
  EXPECT_THAT(output_of("load", {{"LD_LIBRARY_PATH", UNFIT_CUDA}}),
              AllOf(HasSubstr("which does not fit '"), HasSubstr("undefined symbol"), kHasRemedy));
}

TEST(CudaLibrary, OneBesideAnotherCpuHalfIsNotTaken) {
  const testing::TemporaryDirectory folder;
  fs::copy_file(FAKE_CUDA "/libtorch_cuda.so", folder.path() + "/libtorch_cuda.so");
  std::ofstream(folder.path() + "/libtorch_cpu.so") << "of another release";
  const std::string& path = folder.path();
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", path}}),
              AllOf(HasSubstr("[cuda] library: got '" + path +
                              "/libtorch_cuda.so', which belongs "
                              "to the libtorch_cpu.so beside it (18 bytes), not to '"),
                    kHasRemedy));
}

TEST(CudaLibrary, OneThatLacksAnotherLibraryNamesThat) {
  const testing::TemporaryDirectory folder;
  std::ofstream(folder.path() + "/libtorch_cuda.so") << "no library at all";
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", folder.path()}}),
              AllOf(HasSubstr("which does not open ("), HasSubstr("too short"), kHasRemedy));
}

TEST(CudaLibrary, OneThatRegistersNothingIsNotTaken) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", EMPTY_CUDA}}),
              AllOf(HasSubstr("[cuda] library: got '" EMPTY_CUDA "/libtorch_cuda.so', which "
                              "registers no CUDA device"),
                    kHasRemedy));
}

TEST(CudaLibrary, AMachineWithoutDriverIsNamed) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA},
                                 {"FAKE_CUDA_STATUS", "35"},
                                 {"FAKE_CUDA_DRIVER", "0"}}),
              AllOf(HasSubstr("[cuda] driver: got none, expected NVIDIA's driver (libcuda.so.1) "
                              "for CUDA 13.0; run on a machine with a GPU and its driver"),
                    Not(HasSubstr("library"))));
}

TEST(CudaLibrary, AnOldDriverIsNamedWithBothVersions) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA},
                                 {"FAKE_CUDA_STATUS", "35"},
                                 {"FAKE_CUDA_DRIVER", "12040"}}),
              HasSubstr("[cuda] driver: got one for CUDA 12.4, expected one for 13.0; update"));
}

TEST(CudaLibrary, AMachineWithoutGpuIsNamed) {
  EXPECT_THAT(output_of("load", {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA},
                                 {"FAKE_CUDA_DEVICES", "0"},
                                 {"CUDA_VISIBLE_DEVICES", "7"}}),
              HasSubstr("[cuda] devices: got none (no CUDA-capable device is detected; "
                        "CUDA_VISIBLE_DEVICES is '7'), expected at least one GPU"));
}

TEST(CudaLibrary, LoadingTooLateIsAnErrorThatSaysSo) {
  for (const char* body : {"load_after_seed", "load_after_count", "load_after_backward"}) {
    EXPECT_THAT(output_of(body, {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA}}),
                AllOf(HasSubstr("[cuda] library: got '" FAKE_CUDA "/libtorch_cuda.so' after "
                                "LibTorch had been asked for CUDA"),
                      HasSubstr("call init_process_group({.device = at::kCUDA}) at the start")))
        << body;
  }
}

TEST(CudaLibrary, AModelMayBeBuiltBefore) {
  EXPECT_EQ(output_of("load_after_model", {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA}}), "loaded\n");
}

TEST(CudaLibrary, AllProblemsAreListedAtOnce) {
  EXPECT_THAT(
      output_of("load_after_seed",
                {{"TESSERA_CUDA_LIBRARIES", FAKE_CUDA}, {"FAKE_CUDA_DEVICES", "0"}}),
      AllOf(HasSubstr("after LibTorch had been asked"), HasSubstr("\n[cuda] devices: got")));
}

TEST(CudaLibrary, ADeviceNeedsIt) {
  EXPECT_THAT(output_of("device_without_library", {}),
              HasSubstr("[device] cuda: got a process without LibTorch's CUDA half"));
}

}  // namespace
}  // namespace tessera::internal
