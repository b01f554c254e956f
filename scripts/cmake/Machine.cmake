# SPDX-License-Identifier: MIT
# SPEEDBUMP_MACHINE: which of the files *_x86_64.cpp and *_aarch64.cpp are built.
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|aarch64)$")
    message(FATAL_ERROR "speedbump runs on x86-64 and aarch64, not on ${CMAKE_SYSTEM_PROCESSOR}")
endif()
set(SPEEDBUMP_MACHINE ${CMAKE_SYSTEM_PROCESSOR})
