# SPDX-License-Identifier: MIT
# One ctest for each case, named by file and case, so that `ctest -R NAME` runs one. The tests' own
# Python is the distribution's: what is installed for it (Flask, pytest) is what setup.sh installs.
find_program(SPEEDBUMP_TEST_PYTHON python3 PATHS /usr/bin NO_DEFAULT_PATH REQUIRED)
include(GoogleTest)
set(SPEEDBUMP_AHEAD ${CMAKE_CURRENT_LIST_DIR}/ahead.sh) # before the command of a test that judges times

# The same for the cases of a GoogleTest program: before gtest_discover_tests().
function(run_ahead target)
    set_target_properties(${target} PROPERTIES
        CROSSCOMPILING_EMULATOR ${SPEEDBUMP_AHEAD} # CMake before 3.29
        TEST_LAUNCHER ${SPEEDBUMP_AHEAD})
endfunction()
if(SPEEDBUMP_SANITIZE MATCHES thread)
    # Listing the cases runs the program, which some layouts of the address space don't let start:
    # that is left to ctest, which test.sh starts without random layouts.
    set(CMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE PRE_TEST)
endif()

# Of gtest_discover_tests(): it starts the program, which a busy host may let wait for more than 5 s.
set(SPEEDBUMP_PATIENT DISCOVERY_TIMEOUT 120)

# add_python_cases(PREFIX FILE LABEL COMMAND... [PROPERTIES ...] [ENVIRONMENT ...])
# PREFIX.CASE runs COMMAND, in which <case> stands for the case's name. Campaigns get that label, and hours.
function(add_python_cases prefix file label)
    cmake_parse_arguments(PARSE_ARGV 3 arg "" "" "COMMAND;PROPERTIES;ENVIRONMENT")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    execute_process(COMMAND ${SPEEDBUMP_TEST_PYTHON} ${CMAKE_SOURCE_DIR}/tests/cases.py ${file}
                    OUTPUT_VARIABLE output OUTPUT_STRIP_TRAILING_WHITESPACE
                    COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" lines "${output}")
    foreach(line IN LISTS lines)
        string(REPLACE " " ";" line "${line}")
        list(GET line 0 case)
        set(labels ${label})
        if(campaign IN_LIST line)
            set(labels campaign)
        endif()
        string(REPLACE "<case>" ${case} command "${arg_COMMAND}")
        string(REPLACE "test_" "" name ${case})
        add_test(NAME ${prefix}.${name} COMMAND ${command})
        set_tests_properties(${prefix}.${name} PROPERTIES
            LABELS ${labels} SKIP_RETURN_CODE 77 ${arg_PROPERTIES})
        if(campaign IN_LIST line)
            set_tests_properties(${prefix}.${name} PROPERTIES TIMEOUT 36000)
        endif()
        if(alone IN_LIST line)
            set_tests_properties(${prefix}.${name} PROPERTIES RUN_SERIAL TRUE)
        endif()
        set_property(TEST ${prefix}.${name} PROPERTY ENVIRONMENT ${arg_ENVIRONMENT})
    endforeach()
endfunction()
