# cmake --install, and what find_package(Tessera) reads afterwards.
include(CMakePackageConfigHelpers)

set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
# Modules are opened at run time: programs of this package look for them there, too, wherever the
# prefix is by then.
target_link_options(
  tessera_core INTERFACE
  "$<INSTALL_INTERFACE:-Wl,-rpath,$<INSTALL_PREFIX>/${CMAKE_INSTALL_LIBDIR}>")
install(TARGETS tessera tessera_core tessera_optim tessera_ddp tessera_fsdp tessera_zero
                tessera_data tessera_checkpoint EXPORT TesseraTargets)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${config_dir})
install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindLibTorch.cmake DESTINATION ${config_dir})
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The public headers and nothing else: they include only each other.
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tessera
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")

# Released versions only: another one may be called "head".
string(REGEX MATCH "^[0-9.]+$" absl_exact "${absl_VERSION}")
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/TesseraConfig.cmake.in ${PROJECT_BINARY_DIR}/TesseraConfig.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake
              ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake DESTINATION ${config_dir})
# Builds what is installed, and no more.
add_custom_target(tessera_installed)
foreach(target IN LISTS installed_targets)
  if(TARGET ${target})
    add_dependencies(tessera_installed ${target})
  endif()
endforeach()

# The component `machine` is what holds on this machine only: packages leave it out.
file(WRITE ${PROJECT_BINARY_DIR}/TesseraBuiltWith.cmake
     "set(LibTorch_DEFAULT_ROOT \"${TESSERA_TORCH}\")\n")
install(FILES ${PROJECT_BINARY_DIR}/TesseraBuiltWith.cmake DESTINATION ${config_dir}
        COMPONENT machine)
