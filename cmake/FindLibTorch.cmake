# Finds the CPU half of a LibTorch: a folder with include/ and lib/, created by bootstrap.sh,
# unpacked from a LibTorch archive, or site-packages/torch.
#
# find_package(Torch) is not used: in a CUDA wheel it needs nvcc, adds old -gencode flags and links
# libtorch_cuda, which takes seconds at every start.
#
# Uses the first of these that is a LibTorch:
#   TESSERA_TORCH            the folder (cache variable or environment)
#   torch_cpu                the target of an earlier find_package(Torch)
#   Torch_DIR                where find_package(Torch) looks
#   CMAKE_PREFIX_PATH        (variable or environment) the folder, one with torch/ in it, or
#                            torch.utils.cmake_prefix_path of Python
#   CONDA_PREFIX             libtorch of conda-forge
#   LibTorch_DEFAULT_ROOT    the one that an installed Tessera was built with
#   bootstrap.sh's cache
# Defines
#   LibTorch::c10, LibTorch::torch_cpu
#   LibTorch_VERSION

# Appends to `list` the folders near `folder` that may be a LibTorch.
function(_torch_candidates list folder)
  if(folder)
    list(APPEND ${list} ${folder} ${folder}/torch ${folder}/../..)
    set(${list} ${${list}} PARENT_SCOPE)
  endif()
endfunction()

set(_torch_roots "$ENV{TESSERA_TORCH}")
if(NOT _torch_roots)
  if(TARGET torch_cpu)
    foreach(_torch_property IMPORTED_LOCATION IMPORTED_LOCATION_RELEASE)
      get_target_property(_torch_library torch_cpu ${_torch_property})
      if(_torch_library)
        cmake_path(GET _torch_library PARENT_PATH _torch_folder)
        list(APPEND _torch_roots ${_torch_folder}/..)
      endif()
    endforeach()
  endif()
  if(Torch_DIR)
    list(APPEND _torch_roots ${Torch_DIR}/../../..)
  endif()
  string(REPLACE ":" ";" _torch_environment "$ENV{CMAKE_PREFIX_PATH}")
  foreach(_torch_folder IN LISTS CMAKE_PREFIX_PATH _torch_environment)
    _torch_candidates(_torch_roots "${_torch_folder}")
  endforeach()
  _torch_candidates(_torch_roots "$ENV{CONDA_PREFIX}")
  list(APPEND _torch_roots ${LibTorch_DEFAULT_ROOT})
  if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    list(APPEND _torch_roots $ENV{XDG_CACHE_HOME}/tessera/libtorch-2.11.0)
  else()
    list(APPEND _torch_roots $ENV{HOME}/.cache/tessera/libtorch-2.11.0)
  endif()
endif()
set(_torch_default "")
foreach(_torch_root IN LISTS _torch_roots)
  if(NOT _torch_default AND EXISTS "${_torch_root}/include/ATen/core/Tensor.h"
     AND EXISTS "${_torch_root}/lib/libtorch_cpu.so")
    file(REAL_PATH "${_torch_root}" _torch_default)
  endif()
endforeach()
# Only a real LibTorch or the user's value is cached, so that after an error the remedy works in the
# same build folder. For the same reason the files in TESSERA_TORCH are searched again each time.
if(_torch_default OR DEFINED CACHE{TESSERA_TORCH})
  set(TESSERA_TORCH "${_torch_default}" CACHE PATH "LibTorch: a folder with include/ and lib/")
endif()
set(_torch_places "TESSERA_TORCH, Torch_DIR, CMAKE_PREFIX_PATH or CONDA_PREFIX")  # for the message
foreach(_torch_root IN ITEMS "$ENV{TESSERA_TORCH}" "${TESSERA_TORCH}")
  if(_torch_root)
    set(_torch_places "'${_torch_root}'")
  endif()
endforeach()
foreach(_torch_part INCLUDE_DIR CPU_LIBRARY C10_LIBRARY)
  unset(LibTorch_${_torch_part})
  unset(LibTorch_${_torch_part} CACHE)  # left in an older build folder
endforeach()
find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h PATHS "${TESSERA_TORCH}/include" NO_DEFAULT_PATH
                                                        NO_CACHE)
find_library(LibTorch_CPU_LIBRARY torch_cpu PATHS "${TESSERA_TORCH}/lib" NO_DEFAULT_PATH NO_CACHE)
find_library(LibTorch_C10_LIBRARY c10 PATHS "${TESSERA_TORCH}/lib" NO_DEFAULT_PATH NO_CACHE)

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
    "no LibTorch in ${_torch_places}: run cmake/bootstrap.sh, or set TESSERA_TORCH or CMAKE_PREFIX_PATH")

if(LibTorch_FOUND AND NOT TARGET LibTorch::torch_cpu)
  add_library(LibTorch::c10 SHARED IMPORTED)
  set_target_properties(
    LibTorch::c10
    PROPERTIES IMPORTED_LOCATION ${LibTorch_C10_LIBRARY}
               INTERFACE_INCLUDE_DIRECTORIES
               "${LibTorch_INCLUDE_DIR};${LibTorch_INCLUDE_DIR}/torch/csrc/api/include"
               # Required: see TesseraCompile.cmake.
               INTERFACE_COMPILE_DEFINITIONS NDEBUG)
  add_library(LibTorch::torch_cpu SHARED IMPORTED)
  set_target_properties(LibTorch::torch_cpu PROPERTIES IMPORTED_LOCATION ${LibTorch_CPU_LIBRARY})
  target_link_libraries(LibTorch::torch_cpu INTERFACE LibTorch::c10)
endif()
