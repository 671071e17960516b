# The common settings of all tests.
#   tessera_test_environment      value of a test's property ENVIRONMENT
#   tessera_test_gpu_environment  the same for a test whose backward runs in autograd's threads
#   tessera_test_patience         the factor by which this build may exceed a plain build's limit
#   tessera_test_launcher         prefix of a command whose ranks are threads
set(tessera_test_environment OMP_NUM_THREADS=1)
set(tessera_test_gpu_environment ${tessera_test_environment})
set(tessera_test_patience 1)
set(tessera_test_launcher)
if(TESSERA_SANITIZE)
  set(tessera_test_patience 5)
  set(tests ${PROJECT_SOURCE_DIR}/tests)
  # Scenario 47 checks that memory is returned, so freed memory must not be kept by the hundred MB.
  list(APPEND tessera_test_environment
       "ASAN_OPTIONS=quarantine_size_mb=16"
       "LSAN_OPTIONS=suppressions=${tests}/lsan.supp"
       "UBSAN_OPTIONS=print_stacktrace=1")
  set(tsan second_deadlock_stack=1)
  set(tessera_test_gpu_environment ${tessera_test_environment}
                                   "TSAN_OPTIONS=${tsan}:suppressions=${tests}/tsan_gpu.supp")
  set(tsan ${tsan}:ignore_noninstrumented_modules=1)
  list(APPEND tessera_test_environment "TSAN_OPTIONS=${tsan}:suppressions=${tests}/tsan.supp")
  if(TESSERA_SANITIZE STREQUAL "thread")
    # GCC 12's runtime cannot place its shadow memory with 32 bits of address randomisation.
    set(tessera_test_launcher setarch -R)
    # MPICH's UCX patches madvise() by a function with a lock. A thread that ends calls it after the
    # runtime has forgotten the thread, and crashes.
    list(APPEND tessera_test_environment "UCX_MEM_EVENTS=no")
  endif()
endif()

# tessera_test_limit(<variable> <seconds>): the time limit of a test that has the limit <seconds> in
# a plain build. Limits are against hangs: at least three times the time on our slowest machine.
macro(tessera_test_limit variable seconds)
  math(EXPR ${variable} "${seconds} * ${tessera_test_patience}")
endmacro()
