# The examples run as a reader of the README would run them, at tiny sizes.
# tessera_example_test(<name> <ranks> <expected last lines> <program> <arguments>...)
function(tessera_example_test name ranks expected program)
  set(command $<TARGET_FILE:${program}> ${ARGN})
  if(ranks GREATER 1)
    set(command $<TARGET_FILE:tessera-run> --standalone --nproc-per-node ${ranks} -- ${command})
  endif()
  add_test(NAME ${name} COMMAND ${command})
  set_tests_properties(${name} PROPERTIES LABELS examples TIMEOUT 120 ENVIRONMENT OMP_NUM_THREADS=1
                                          PASS_REGULAR_EXPRESSION "${expected}")
endfunction()

set(tiny_gpt --layers=1 --heads=2 --width=32 --context=32 --batch=2 --steps=3 --sample_bytes=8
             --data=${PROJECT_SOURCE_DIR}/examples --memory)
foreach(ranks 1 2 3)
  tessera_example_test(examples.quickstart.${ranks} ${ranks} "parameters [0-9a-f]+" quickstart
                       --epochs=2 --strategy=zero2)
  tessera_example_test(examples.gpt.${ranks} ${ranks} "held-out loss .*parameters .*sample:" gpt
                       ${tiny_gpt} --strategy=zero1)
endforeach()
