# SPDX-License-Identifier: MIT
# The libraries of others. Shared ones are what this host has; with SPEEDBUMP_STATIC all are linked
# in, and the programs need nothing of the host that they run on.
option(SPEEDBUMP_STATIC "link the programs statically (scripts/static-libraries.sh first)" OFF)
if(SPEEDBUMP_STATIC)
    set(CMAKE_FIND_LIBRARY_SUFFIXES .a)
endif()

find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
if(SPEEDBUMP_MACHINE STREQUAL "x86_64")
    find_package(Zydis REQUIRED) # takes instructions apart
    set(decoder Zydis)
endif()
find_package(LibLZMA REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(LIBDW REQUIRED IMPORTED_TARGET libdw>=0.189 libelf)
if(SPEEDBUMP_LOADER)
    find_package(CLI11 REQUIRED)
    pkg_check_modules(LIBBPF REQUIRED IMPORTED_TARGET libbpf>=1.3)
    pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
    pkg_check_modules(SECCOMP REQUIRED IMPORTED_TARGET libseccomp)
    if(NOT SPEEDBUMP_STATIC)
        find_package(CURL REQUIRED)
    endif()
endif()
if(NOT SPEEDBUMP_STATIC)
    return()
endif()

# Without symbols from the start: a build ID made of debugging information, which a later `strip`
# removes, would depend on where the sources lay.
add_link_options(-s)
# These two have no archives in Debian: their targets keep what they say of headers.
set(archives ${CMAKE_SOURCE_DIR}/build/static-libraries-${SPEEDBUMP_MACHINE})
foreach(library fmt ${decoder})
    if(NOT EXISTS ${archives}/lib${library}.a)
        message(FATAL_ERROR "no ${archives}/lib${library}.a: scripts/static-libraries.sh ${SPEEDBUMP_MACHINE} makes it")
    endif()
    get_target_property(configurations ${library}::${library} IMPORTED_CONFIGURATIONS)
    foreach(configuration ${configurations})
        set_target_properties(${library}::${library} PROPERTIES
            IMPORTED_LOCATION_${configuration} ${archives}/lib${library}.a
            IMPORTED_SONAME_${configuration} "")
    endforeach()
endforeach()
if(decoder)
    set_target_properties(Zydis::Zydis PROPERTIES INTERFACE_LINK_LIBRARIES "")
endif()
# What libelf needs, and with it libdw and libbpf: pkg-config tells it for shared libraries only.
set(elf_needs ${archives}/libeu.a -lz -llzma -lbz2 -lzstd)
set_property(TARGET PkgConfig::LIBDW APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${elf_needs})
if(SPEEDBUMP_LOADER)
    set_property(TARGET PkgConfig::LIBBPF APPEND PROPERTY INTERFACE_LINK_LIBRARIES ${elf_needs})
endif()
