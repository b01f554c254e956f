# SPDX-License-Identifier: MIT
# Packages by CPack, of a build with SPEEDBUMP_STATIC: speedbump, speedbump-dkms and
# python3-speed-bump, as .deb and .rpm. scripts/package.sh makes them in a clean root.
set(CPACK_PACKAGE_NAME speedbump)
set(CPACK_PACKAGE_VENDOR "speedbump developers")
set(CPACK_PACKAGE_CONTACT "speedbump developers <noreply@speedbump.example>")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
    OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
# What the distributions want besides of each package: changelog, copyright, compressed pages.
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/scripts/packages/files.cmake)

set(CPACK_COMPONENTS_ALL speedbump cores dkms python)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
set(CPACK_COMPONENT_SPEEDBUMP_GROUP speedbump)
set(CPACK_COMPONENT_CORES_GROUP speedbump)
set(CPACK_COMPONENT_DKMS_GROUP dkms)
set(CPACK_COMPONENT_PYTHON_GROUP python)
set(speedbump_summary "slow chosen functions of running programs down")
set(speedbump_description
"An experiment in place of a profile: speedbump makes functions of a live
process a known time slower, so that one sees what the service loses by it.
Native functions are slowed by BPF programs behind uprobes, those of CPython
3.10 to 3.15 by a hook that is loaded into the interpreter.")
set(dkms_summary "kernel module that slows chosen functions down")
set(dkms_description
"The source of the kernel module speed_bump, for DKMS to build. It slows
native functions where BPF can't, and is driven by writing to files or by
the program sbctl of the package speedbump.")
set(python_summary "slow chosen Python functions of a program down")
set(python_description
"The Python functions that a file of targets names are slowed from a program's
start, without root and without a change of its source: a variable of its
environment names the file.")

# postinst and prerm of the packages that have them.
set(package_scripts ${CMAKE_BINARY_DIR}/package-scripts)
foreach(name dkms/postinst dkms/prerm python/postinst python/prerm)
    configure_file(scripts/packages/${name}.in ${package_scripts}/${name} @ONLY)
    file(CHMOD ${package_scripts}/${name}
         PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                     WORLD_EXECUTE)
endforeach()

if(CMAKE_CROSSCOMPILING) # else those of the tools that make them
    set(CPACK_DEBIAN_PACKAGE_ARCHITECTURE arm64)
    set(CPACK_RPM_PACKAGE_ARCHITECTURE aarch64)
endif()

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_SPEEDBUMP_PACKAGE_NAME speedbump)
set(CPACK_DEBIAN_SPEEDBUMP_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_SPEEDBUMP_PACKAGE_DEPENDS "libc6 (>= 2.28)") # the cores
set(CPACK_DEBIAN_SPEEDBUMP_PACKAGE_SUGGESTS "speedbump-dkms, python3-speed-bump, curl")
set(CPACK_DEBIAN_DKMS_PACKAGE_NAME speedbump-dkms)
set(CPACK_DEBIAN_DKMS_PACKAGE_SECTION kernel)
set(CPACK_DEBIAN_DKMS_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DKMS_PACKAGE_DEPENDS "dkms (>= 3.0)")
set(CPACK_DEBIAN_DKMS_PACKAGE_RECOMMENDS "speedbump")
set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-speed-bump)
set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "libc6 (>= 2.28), python3 (>= 3.10)")

set(CPACK_RPM_COMPONENT_INSTALL ON)
set(CPACK_RPM_FILE_NAME RPM-DEFAULT)
set(CPACK_RPM_PACKAGE_LICENSE "MIT AND GPL-2.0-only")
set(CPACK_RPM_SPEEDBUMP_PACKAGE_NAME speedbump)
set(CPACK_RPM_DKMS_PACKAGE_NAME speedbump-dkms)
set(CPACK_RPM_DKMS_PACKAGE_ARCHITECTURE noarch)
set(CPACK_RPM_DKMS_PACKAGE_REQUIRES dkms)
set(CPACK_RPM_DKMS_POST_INSTALL_SCRIPT_FILE ${package_scripts}/dkms/postinst)
set(CPACK_RPM_DKMS_PRE_UNINSTALL_SCRIPT_FILE ${package_scripts}/dkms/prerm)
# The Python package lies where Debian's Pythons look: elsewhere it comes as a wheel.
set(CPACK_RPM_EXCLUDE_FROM_AUTO_FILELIST_ADDITION /usr/share/man /usr/share/man/man1 /usr/src
    /usr/share/bash-completion /usr/share/bash-completion/completions /usr/share/zsh
    /usr/share/fish /usr/share/fish/vendor_completions.d)
set(CPACK_RPM_SPEC_MORE_DEFINE "%define _buildhost speedbump
%define use_source_date_epoch_as_buildtime Y
%define clamp_mtime_to_source_date_epoch Y
%define _build_id_links none")

foreach(component speedbump dkms python)
    string(TOUPPER ${component} name)
    set(CPACK_DEBIAN_${name}_DESCRIPTION "${${component}_summary}\n${${component}_description}")
    set(CPACK_RPM_${name}_PACKAGE_SUMMARY "${${component}_summary}")
    set(CPACK_RPM_${name}_PACKAGE_DESCRIPTION "${${component}_description}")
    if(EXISTS ${package_scripts}/${component})
        set(CPACK_DEBIAN_${name}_PACKAGE_CONTROL_EXTRA
            "${package_scripts}/${component}/postinst;${package_scripts}/${component}/prerm")
    endif()
endforeach()
include(CPack)
