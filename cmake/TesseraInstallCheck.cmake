# The first step of cmake --install: reports files that are not built before anything is copied.
# Otherwise find_package would find an incomplete prefix and refuse it without a reason.
set(installed_files)
set(installed_targets tessera_core tessera_optim tessera_ddp tessera_fsdp tessera_zero
                      tessera_data tessera_checkpoint tessera-run tessera-checkpoint tessera_cuda tessera_cuda_graph
                      tessera_mpi_openmpi tessera_mpi_mpich)
foreach(target IN LISTS installed_targets)
  list(APPEND installed_files "$<$<TARGET_EXISTS:${target}>:$<TARGET_FILE:${target}>>")
endforeach()
install(CODE "
set(files \"${installed_files}\")
set(missing)
foreach(file IN LISTS files)
  if(file AND NOT EXISTS \"\${file}\")  # empty: the target does not exist
    cmake_path(GET file FILENAME name)
    string(APPEND missing \" \${name}\")
  endif()
endforeach()
if(missing)
  message(FATAL_ERROR \"Nothing was installed: not built yet:\${missing}. Build all first: \"
                      \"make build, or cmake --build ${PROJECT_BINARY_DIR}\")
endif()
")
