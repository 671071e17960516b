# make package: the files of cmake --install as a .tar.gz and, on Debian and Ubuntu, as a .deb.
# LibTorch is not included: programs use their own.
string(REGEX MATCH "^[0-9]+[.][0-9]+" torch "${LibTorch_VERSION}")

set(CPACK_PACKAGE_NAME libtessera-dev)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION}+torch${torch})
set(CPACK_PACKAGE_FILE_NAME
    tessera-${CPACK_PACKAGE_VERSION}-${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_VENDOR "The Tessera Authors")
set(CPACK_PACKAGE_CONTACT "The Tessera Authors <nobody@tessera.invalid>"
    CACHE STRING "Maintainer of the packages: whoever makes them")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train any torch::nn model on many ranks, from C++")
set(CPACK_PACKAGE_DESCRIPTION
    "Static libraries, headers, a package for CMake, and the programs tessera-run and tessera-checkpoint.
LibTorch is not in this package. Programs need LibTorch ${torch}.x; its CPU libraries suffice: an \
archive from pytorch.org, the wheel torch, or libtorch of conda-forge. find_package(Tessera) looks \
for it in TESSERA_TORCH, Torch_DIR, CMAKE_PREFIX_PATH and CONDA_PREFIX.
Made with ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION} and Abseil ${absl_VERSION}. \
Programs also need Abseil of this version, libsodium and xxHash, all three with headers.")
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

# Without the component `machine`, which contains LibTorch's path on the building machine.
set(CPACK_INSTALL_CMAKE_PROJECTS "${PROJECT_BINARY_DIR};${PROJECT_NAME};Unspecified;/;\
${PROJECT_BINARY_DIR};${PROJECT_NAME};package;/")
file(WRITE ${PROJECT_BINARY_DIR}/package.txt "${CPACK_PACKAGE_DESCRIPTION}\n")
install(FILES ${PROJECT_BINARY_DIR}/package.txt DESTINATION ${CMAKE_INSTALL_DOCDIR}
        RENAME README COMPONENT package EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR TGZ)
find_program(TESSERA_DPKG_QUERY dpkg-query)
if(TESSERA_DPKG_QUERY)
  list(APPEND CPACK_GENERATOR DEB)
  # The libraries were compiled with this Abseil, and its version is part of its symbol names.
  execute_process(COMMAND ${TESSERA_DPKG_QUERY} -W -f \${Version} libabsl-dev
                  OUTPUT_VARIABLE absl_package ERROR_QUIET)
  set(depends libsodium-dev libxxhash-dev)
  if(absl_package MATCHES "^[0-9~]*[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]")
    list(APPEND depends "libabsl-dev (>= ${CMAKE_MATCH_0})" "libabsl-dev (<< ${CMAKE_MATCH_0}.99)")
  else()
    list(APPEND depends libabsl-dev)
  endif()
  list(JOIN depends ", " CPACK_DEBIAN_PACKAGE_DEPENDS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # the dependencies of its programs
  set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "cmake (>= ${CMAKE_MINIMUM_REQUIRED_VERSION}), g++")
  set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  # Debian expects the license here.
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION share/doc/${CPACK_PACKAGE_NAME}
          RENAME copyright COMPONENT debian EXCLUDE_FROM_ALL)
  set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_BINARY_DIR}/package.cmake)
  file(WRITE ${CPACK_PROJECT_CONFIG_FILE} "
if(CPACK_GENERATOR STREQUAL \"DEB\")
  list(APPEND CPACK_INSTALL_CMAKE_PROJECTS \"${PROJECT_BINARY_DIR}\" ${PROJECT_NAME} debian /)
  find_program(shlibdeps dpkg-shlibdeps)
  if(NOT shlibdeps)  # CPack would continue without it and list too few packages
    message(FATAL_ERROR \"no dpkg-shlibdeps: apt-get install dpkg-dev file\")
  endif()
endif()
")
endif()
include(CPack)
