# shellcheck shell=bash
# SPDX-License-Identifier: MIT
# The files of the project, for the other scripts here: those that git knows, else all outside of
# build folders.

project_files() {
    if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git ls-files "$@"
    else
        find . -type f -not -path './build*' -not -path './.*' | sed 's|^\./||'
    fi | while IFS= read -r file; do
        [ -f "$file" ] && printf '%s\n' "$file"
    done
}

need() {
    command -v "$1" >/dev/null && return
    echo "skipped: no $1 on this host"
    exit 77
}

# need_version PROGRAM MAJOR: its answers differ from version to version.
need_version() {
    need "$1"
    local text
    text=$("$1" --version)
    [[ $text =~ version\ ([0-9]+) ]] && [ "${BASH_REMATCH[1]}" = "$2" ] && return
    echo "skipped: the sources are as $1 $2 wants them, and here is another: $text"
    exit 77
}
