# The examples run as a reader of the README would run them, at tiny sizes.
foreach(ranks 1 2 3 4)
  set(when CONFIGURATIONS All)
  if(ranks EQUAL 3)
    set(when)
  endif()
  add_test(NAME examples.strategies.${ranks} ${when}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/equal_strategies.sh
                   $<TARGET_FILE_DIR:gpt> ${ranks} ${PROJECT_SOURCE_DIR}/examples)
  list(APPEND examples_tests examples.strategies.${ranks})
endforeach()

add_test(NAME examples.memory_compare
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/memory_compare.sh $<TARGET_FILE_DIR:gpt>)
list(APPEND examples_tests examples.memory_compare)

# The examples under launchers other than tessera-run, if these are installed.
set(launchers openmpi openmpi+mpi mpich mpich+mpi torchrun srun)
if(TESSERA_SANITIZE)
  set(launchers)  # sanitizers test our code, which runs under tessera-run too
endif()
foreach(launcher IN LISTS launchers)
  set(when)
  if(launcher MATCHES "[+]mpi$")  # hosts.* and mpi_under_* already train over both MPIs
    set(when CONFIGURATIONS All)
  endif()
  add_test(NAME examples.launchers.${launcher} ${when}
           COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/launchers.sh $<TARGET_FILE_DIR:gpt>
                   ${launcher} ${PROJECT_SOURCE_DIR}/examples)
  list(APPEND examples_tests examples.launchers.${launcher})
  list(APPEND launcher_tests examples.launchers.${launcher})
endforeach()

# gpt and memory_compare with --device cuda, with the tests' fakes of CUDA and NCCL.
add_test(NAME examples.on_gpu
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/on_gpu.sh $<TARGET_FILE_DIR:gpt>
                 $<TARGET_FILE_DIR:cuda_fake> $<TARGET_FILE:kernels_fake>
                 $<TARGET_FILE:nccl_fake> ${PROJECT_SOURCE_DIR}/examples)
list(APPEND examples_tests examples.on_gpu)

add_test(NAME examples.comm_hook
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/comm_hook.sh $<TARGET_FILE_DIR:gpt>
                 ${PROJECT_SOURCE_DIR}/examples)
list(APPEND examples_tests examples.comm_hook)

add_test(NAME examples.time_out
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/time_out.sh $<TARGET_FILE_DIR:gpt>)
list(APPEND examples_tests examples.time_out)

add_test(NAME examples.command_line
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/command_line.sh $<TARGET_FILE_DIR:gpt>
                 ${PROJECT_SOURCE_DIR}/examples)
list(APPEND examples_tests examples.command_line)

add_test(NAME examples.all_reduce
         COMMAND tessera-run --standalone --nproc-per-node 3 -- $<TARGET_FILE:all_reduce>)
set_tests_properties(examples.all_reduce PROPERTIES PASS_REGULAR_EXPRESSION
                     "rank [0-2] of 3 .shm.: 1 . ... . 3 = 6")
list(APPEND examples_tests examples.all_reduce)

# digits_by_hand and digits_ddp learn real digits equally well, to 80 % or more. (An untrained
# network has 10 %.)
foreach(name digits_by_hand digits_ddp)
  add_test(NAME examples.${name}
           COMMAND tessera-run --standalone --nproc-per-node 3 -- $<TARGET_FILE:${name}> --epochs=4)
  set_tests_properties(examples.${name} PROPERTIES PASS_REGULAR_EXPRESSION
                       "world 3: loss 0[.][0-9]+, accuracy [89][0-9][.][0-9] % of 297")
  list(APPEND examples_tests examples.${name})
endforeach()

# Ranks started by the program itself, as processes and as threads.
foreach(name launch digits_threads)
  add_test(NAME examples.${name} COMMAND $<TARGET_FILE:${name}> --ranks=3)
  set_tests_properties(examples.${name} PROPERTIES PASS_REGULAR_EXPRESSION
                       "world 3: loss 0[.][0-9]+, accuracy [89][0-9][.][0-9] % of 297")
  list(APPEND examples_tests examples.${name})
endforeach()

# Every strategy, on three ranks with 6/11, 3/11 and 2/11 of the digits.
add_test(NAME examples.digits_uneven
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/digits_uneven.sh $<TARGET_FILE_DIR:gpt>)
list(APPEND examples_tests examples.digits_uneven)

# The programs on digits that take --data, on files in MNIST's format.
add_test(NAME examples.digits_files
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/digits_files.sh $<TARGET_FILE_DIR:gpt>)
list(APPEND examples_tests examples.digits_files)

add_test(NAME examples.resume
         COMMAND ${PROJECT_SOURCE_DIR}/tests/examples/resume.sh $<TARGET_FILE_DIR:gpt>
                 ${PROJECT_SOURCE_DIR}/examples)
list(APPEND examples_tests examples.resume)

# Compares the ported programs with the plain ones, and docs/port.md with both.
foreach(name mnist dcgan custom_dataset wgan_gp torchscript)
  set(when CONFIGURATIONS All)
  if(name STREQUAL "mnist")
    set(when)
  endif()
  add_test(NAME examples.port.${name} ${when}
           COMMAND python3 -B ${PROJECT_SOURCE_DIR}/tests/examples/port.py ${name}
                   $<TARGET_FILE_DIR:gpt>)
  list(APPEND examples_tests examples.port.${name})
endforeach()
add_test(NAME examples.port.page
         COMMAND python3 -B ${PROJECT_SOURCE_DIR}/examples/port/page.py --check)
list(APPEND examples_tests examples.port.page)

# tessera_example_refusal(<name> <expected message> <arguments of gpt>...): runs gpt on two ranks,
# which must print the message.
function(tessera_example_refusal name expected)
  add_test(NAME examples.refuses.${name}
           COMMAND tessera-run --standalone --nproc-per-node 2 -- $<TARGET_FILE:gpt> ${ARGN})
  set_tests_properties(examples.refuses.${name} PROPERTIES PASS_REGULAR_EXPRESSION "${expected}")
  set(examples_tests ${examples_tests} examples.refuses.${name} PARENT_SCOPE)
endfunction()
tessera_example_refusal(missing_data "--data: got '/no/such/text' .No such file or directory."
                        --data=/no/such/text)
tessera_example_refusal(short_data "--data: got [0-9]+ bytes of text, expected about [0-9]+"
                        --data=${PROJECT_SOURCE_DIR}/.clang-format)
tessera_example_refusal(degrees "degrees: got none; strategy hybrid needs them" --strategy=hybrid
                        --data=${PROJECT_SOURCE_DIR}/examples)
tessera_example_refusal(reshard "reshard_after_forward: is set, but strategy ddp" --strategy=ddp
                        --reshard_after_forward=1 --data=${PROJECT_SOURCE_DIR}/examples)
tessera_example_refusal(comm_hook "got strategy zero3, which splits gradients over 2 ranks"
                        --strategy=zero3 --comm_hook=noop --data=${PROJECT_SOURCE_DIR}/examples)
tessera_example_refusal(dtype "got 'int8', expected float, bfloat16 or float16" --param_dtype=int8)
tessera_example_refusal(flags "--batch: got 0.*--width: got 10|--width: got 10.*--batch: got 0"
                        --batch=0 --width=10)

tessera_test_limit(seconds 600)
set_tests_properties(${examples_tests} PROPERTIES LABELS examples TIMEOUT ${seconds}
                                                  ENVIRONMENT "${tessera_test_environment}")
set_tests_properties(examples.on_gpu PROPERTIES LABELS "examples;cuda_host" TIMEOUT ${seconds}
                                               ENVIRONMENT "${tessera_test_gpu_environment}")
if(launcher_tests)
  set_tests_properties(${launcher_tests} PROPERTIES SKIP_RETURN_CODE 77)
endif()
