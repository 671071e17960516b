# cmake --install, and the files that find_package(Tessera) reads afterwards.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
# Modules are opened at run time: programs that use this package also search there for them, even if
# the prefix was moved.
target_link_options(
  tessera_core INTERFACE
  "$<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>")
install(TARGETS tessera tessera_core tessera_optim tessera_ddp tessera_fsdp tessera_zero
                tessera_data tessera_checkpoint EXPORT TesseraTargets)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${config_dir})
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${config_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Only the public headers: they include only each other.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# The package requires this Abseil if it is a released version; others may be called "head".
string(REGEX MATCH "^[0-9.]+$" absl_exact "${absl_VERSION}")
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/TesseraConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${config_dir})
# Builds exactly the installed targets.
add_custom_target(tessera_installed)
foreach(target IN LISTS installed_targets)
  if(TARGET ${target})
    add_dependencies(tessera_installed ${target})
  endif()
endforeach()

# The component `machine` is valid only on this machine, so packages leave it out.
file(WRITE ${PROJECT_BINARY_DIR}/TesseraBuiltWith.cmake
     "set(LibTorch_DEFAULT_ROOT \"${TESSERA_TORCH}\")\n")
install(FILES ${PROJECT_BINARY_DIR}/TesseraBuiltWith.cmake DESTINATION ${config_dir}
        COMPONENT machine)
