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

# scripts_of PROGRAMS PATTERN...: files that are named so, or whose first line runs one of these (a regex).
scripts_of() {
    local programs=$1 file pattern
    shift
    while IFS= read -r file; do
        for pattern in "$@"; do
            # shellcheck disable=SC2053 # it is a pattern
            [[ $file == $pattern ]] && printf '%s\n' "$file" && continue 2
        done
        grep -qaE "^#!.*\b($programs)\b" <(head -n 1 -- "$file") && printf '%s\n' "$file"
    done < <(project_files .)
    return 0
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
