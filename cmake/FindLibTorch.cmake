# Finds the CPU half of a LibTorch: a folder with include/ and lib/, as made by
# bootstrap.sh, unpacked from a LibTorch archive, or site-packages/torch.
#
# find_package(Torch) is not used: that of a CUDA wheel needs nvcc, adds old
# -gencode flags and links libtorch_cuda, which costs seconds at every start.
#
#   TESSERA_TORCH            the folder (cache variable or environment)
#   LibTorch::c10, LibTorch::torch_cpu
#   LibTorch_VERSION

set(_torch_default "$ENV{TESSERA_TORCH}")
if(NOT _torch_default AND LibTorch_DEFAULT_ROOT)
  set(_torch_default "${LibTorch_DEFAULT_ROOT}")
endif()
if(NOT _torch_default)
  if(DEFINED ENV{XDG_CACHE_HOME})
    set(_torch_default "$ENV{XDG_CACHE_HOME}/tessera/libtorch-2.11.0")
  else()
    set(_torch_default "$ENV{HOME}/.cache/tessera/libtorch-2.11.0")
  endif()
endif()
set(TESSERA_TORCH "${_torch_default}" CACHE PATH "LibTorch: a folder with include/ and lib/")

find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS ${TESSERA_TORCH}/include NO_DEFAULT_PATH)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS ${TESSERA_TORCH}/lib NO_DEFAULT_PATH)
find_library(LibTorch_C10_LIBRARY c10 PATHS ${TESSERA_TORCH}/lib NO_DEFAULT_PATH)
mark_as_advanced(LibTorch_INCLUDE_DIR LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY)

if(LibTorch_INCLUDE_DIR)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _torch_lines
       REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE "[^0-9;]" "" _torch_lines "${_torch_lines}")
  list(JOIN _torch_lines "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE
    "no LibTorch in '${TESSERA_TORCH}': run cmake/bootstrap.sh or set TESSERA_TORCH")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(
    LibTorch::c10
    PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY}
               INTERFACE_INCLUDE_DIRECTORIES
               "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
               # Not a choice: see TesseraCompile.cmake.
               INTERFACE_COMPILE_DEFINITIONS NDEBUG)
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY})
  target_link_libraries(LibTorch::torch_cpu INTERFACE LibTorch::c10)
endif()
