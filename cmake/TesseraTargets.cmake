# Turns folders into targets. Sources are globbed, so a new file needs no edit.

# tessera_library(<folder> <dependencies>...): libtessera_<folder>.a, Tessera::<folder>.
function(tessera_library name)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS *.cc)
  list(FILTER sources EXCLUDE REGEX "_module/")  # separate libraries, opened at run time
  if(NOT sources)
    file(TOUCH ${CMAKE_CURRENT_BINARY_DIR}/empty.cc)
    set(sources ${CMAKE_CURRENT_BINARY_DIR}/empty.cc)
  endif()
  add_library(tessera_${name} STATIC ${sources})
  add_library(Tessera::${name} ALIAS tessera_${name})
  set_target_properties(tessera_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(tessera_${name} PUBLIC cxx_std_20)
  target_include_directories(
    tessera_${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(tessera_${name} PUBLIC ${ARGN})

  # Arithmetic loops: vectorised, and without the precompiled header, which would need the same
  # flags.
  set(kernels ${sources})
  list(FILTER kernels INCLUDE REGEX "kernels[^/]*\\.cc$")
  set_source_files_properties(${kernels} PROPERTIES
    SKIP_PRECOMPILE_HEADERS ON SKIP_UNITY_BUILD_INCLUSION ON)
  if(NOT TESSERA_SANITIZE)
    set_source_files_properties(${kernels} PROPERTIES COMPILE_OPTIONS "-O3")
  endif()
endfunction()

# tessera_make_pch(): torch/torch.h costs 14 s per file. Precompiled once and shared it still costs
# 5 s per file, because GCC instantiates its templates again in every file. The precompiled header
# takes half a minute, and most targets wait for it, so it is declared first: ninja starts with the
# first declared target.
function(tessera_make_pch)
  file(TOUCH ${PROJECT_BINARY_DIR}/pch.cc)
  add_library(tessera_pch OBJECT ${PROJECT_BINARY_DIR}/pch.cc)
  target_link_libraries(tessera_pch PRIVATE LibTorch::torch_cpu)
  target_precompile_headers(tessera_pch PRIVATE ${PROJECT_SOURCE_DIR}/cmake/pch.h)
endfunction()

# tessera_use_pch(<target>): only for targets whose files include torch/torch.h; core and its tests
# have a smaller precompiled header.
function(tessera_use_pch target)
  target_precompile_headers(${target} REUSE_FROM tessera_pch)
endfunction()

# tessera_programs(<library prefix> <program prefix> <dependencies>...): each <name>/main.cc in the
# current folder becomes the program <program prefix><name>. The other files of <name>/ become the
# static library <library prefix><name>, which the program and tests link. Sets
# <library prefix>libraries and <library prefix>programs to the lists of all of them.
function(tessera_programs library_prefix program_prefix)
  set(libraries)
  file(GLOB mains CONFIGURE_DEPENDS */main.cc)
  foreach(main IN LISTS mains)
    cmake_path(GET main PARENT_PATH folder)
    cmake_path(GET folder FILENAME name)
    file(GLOB_RECURSE parts CONFIGURE_DEPENDS ${folder}/*.cc)
    list(REMOVE_ITEM parts ${main})
    add_executable(${program_prefix}${name} ${main})
    target_link_libraries(${program_prefix}${name} PRIVATE ${ARGN})
    if(parts)
      add_library(${library_prefix}${name} STATIC ${parts})
      target_link_libraries(${library_prefix}${name} PUBLIC ${ARGN})
      target_link_libraries(${program_prefix}${name} PRIVATE ${library_prefix}${name})
      list(APPEND libraries ${library_prefix}${name})
    endif()
    list(APPEND programs ${program_prefix}${name})
  endforeach()
  set(${library_prefix}libraries ${libraries} PARENT_SCOPE)
  set(${library_prefix}programs ${programs} PARENT_SCOPE)
endfunction()

# tessera_only_in_everything(<targets>...): targets that `make test` does not need. The target `all`
# is tested after each change; `make build` and `make test-all` also build the rest, `everything`.
# Its tests belong to ctest's configuration All (`ctest -C All`). docs/testing.md lists them with
# the reasons.
add_custom_target(everything)
function(tessera_only_in_everything)
  set_target_properties(${ARGN} PROPERTIES EXCLUDE_FROM_ALL ON)
  add_dependencies(everything ${ARGN})
endfunction()
