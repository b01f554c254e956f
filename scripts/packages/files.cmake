# SPDX-License-Identifier: MIT
# CPack runs this when the files of all packages lie ready, once for each kind of package.
execute_process(COMMAND ${CMAKE_CURRENT_LIST_DIR}/files.sh ${CPACK_TEMPORARY_DIRECTORY}
                        ${CPACK_PACKAGE_VERSION} "${CPACK_PACKAGE_CONTACT}"
                COMMAND_ERROR_IS_FATAL ANY)
