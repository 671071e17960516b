# Flags for every file. They are part of the precompiled header, so all targets share them; a flag
# for one file belongs to that file (see core/).

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

add_compile_options(
  -Wall -Wextra
  # One set of code-generation flags for libraries and programs: CMake's own split into -fPIC and
  # -fPIE would need two precompiled headers.
  -fPIC -fno-semantic-interposition
  # The same bits on every path: a fused multiply-add in only one of two loops would make strategies
  # differ.
  -ffp-contract=off -fno-math-errno)

# The layout of at::RecordFunction depends on NDEBUG, and LibTorch was built with it, so even debug
# builds define it. Tessera's own checks use TESSERA_DCHECK.
add_compile_definitions(NDEBUG)
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  add_compile_definitions(TESSERA_DEBUG_CHECKS)
endif()

if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  if(TESSERA_SANITIZE MATCHES "undefined")
    # vptr reports correct casts, because LibTorch hides its type information. The other three are
    # half of the code that this sanitizer adds, and AddressSanitizer reports the same errors.
    add_compile_options(-fno-sanitize=vptr,null,object-size,pointer-overflow)
  endif()
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()

if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A compiler's heap may grow to 2 GB before GCC collects garbage. If many files are compiled as
  # one this saves a seventh of the time; the largest compilation takes 3.0 GB instead of 2.6.
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=2000000>")
endif()

find_program(TESSERA_LLD ld.lld)
if(TESSERA_LLD)
  add_link_options(-fuse-ld=lld)
endif()

find_program(TESSERA_CCACHE ccache)
if(TESSERA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Clones of the same sources share compilations, including precompiled headers.
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=yes
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      CCACHE_MAXSIZE=20G ${TESSERA_CCACHE})
  add_compile_options(-fpch-preprocess)  # lets ccache see through the precompiled header
endif()
