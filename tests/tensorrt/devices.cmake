# Tests of what runs on devices, over the stand-in libraries: one process a layout, since a process opens one
# library. Layout 11 is what they take by themselves.
set(environment "")
foreach(name device context scratch graph cases race)
  set(test test_tensorrt_${name})
  if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/${test}.c)
    tandem_test(${test} ${test}.c rig.c)
    target_include_directories(${test} PRIVATE ${tensorrt})
    target_link_libraries(${test} PRIVATE standin_plans)
    set_tests_properties(${test} PROPERTIES LABELS device)
    get_test_property(${test} ENVIRONMENT environment)
  endif()
endforeach()
target_link_libraries(test_tensorrt PRIVATE standin_plans) # of the conformance suite

foreach(test test_tensorrt test_tensorrt_device test_tensorrt_context test_tensorrt_scratch test_tensorrt_graph
             test_tensorrt_cases test_tensorrt_race)
  foreach(layout 10 rtx)
    if(TARGET ${test})
      add_test(NAME ${test}_${layout} COMMAND ${test} ${layout})
      set_tests_properties(${test}_${layout} PROPERTIES LABELS device SKIP_RETURN_CODE 77 TIMEOUT 300)
      if(environment)
        set_tests_properties(${test}_${layout} PROPERTIES ENVIRONMENT "${environment}")
      endif()
    endif()
  endforeach()
endforeach()
