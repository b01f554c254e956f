# SPDX-License-Identifier: MIT
# What `cmake --install` brings besides the programs and the cores (their own rooms install them).
# Components: speedbump (programs and all that belongs to them), cores, dkms, and python (of the
# package python3-speed-bump; not a part of `cmake --install`, as pip installs it).
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME speedbump)
set(documents share/doc/speedbump)

install(FILES docs/speedbump.1 docs/sbctl.1 DESTINATION share/man/man1)
install(FILES docs/completions/speedbump.bash DESTINATION share/bash-completion/completions
        RENAME speedbump)
install(FILES docs/completions/_speedbump DESTINATION share/zsh/vendor-completions)
install(FILES docs/completions/speedbump.fish DESTINATION share/fish/vendor_completions.d)
install(FILES LICENSE DESTINATION ${documents} RENAME copyright)
install(FILES docs/control.md docs/install.md docs/json.md docs/python.md docs/security.md
              docs/sysfs-interface.md docs/targets-file.md DESTINATION ${documents})

# For programs that talk to a session or to the module.
install(FILES docs/control.schema.json DESTINATION share/speedbump)
install(FILES kmod/device_abi.h DESTINATION include/speedbump)

# Where DKMS looks for it when the prefix is /usr; elsewhere `dkms install PREFIX/src/...`.
file(STRINGS kmod/dkms.conf module_version REGEX "^PACKAGE_VERSION=")
string(REGEX REPLACE ".*\"(.*)\"" "\\1" module_version "${module_version}")
file(GLOB module_files CONFIGURE_DEPENDS kmod/*.c kmod/*.h)
list(FILTER module_files EXCLUDE REGEX "\\.mod\\.c$") # of a build in the source tree
list(FILTER module_files EXCLUDE REGEX "/sb_common\\.h$") # a link
install(FILES ${module_files} bpf/sb_common.h kmod/Kbuild kmod/Makefile kmod/dkms.conf
        DESTINATION src/speed-bump-${module_version} COMPONENT dkms)
