#!/bin/bash
# SPDX-License-Identifier: MIT
# The completions and the man page offer exactly the options that --help shows.
#   completions.sh PROGRAM
set -euo pipefail
. "$(dirname "$0")/files.sh"
need fish
need zsh

program=$1
failed=0

# compare NAME EXPECTED FOUND: sets of words.
compare() {
    if [ "$2" != "$3" ]; then
        echo "$1 differs from --help:"
        diff <(echo "$2") <(echo "$3") || true
        failed=1
    fi
}

long_options() { grep -oE -e '--[a-z][a-z-]*' | sort -u; }

bash_completion() {
    # shellcheck source=/dev/null
    (
        . docs/completions/speedbump.bash
        COMP_WORDS=(speedbump "$@")
        COMP_CWORD=$#
        _speedbump
        printf '%s\n' "${COMPREPLY[@]}"
    )
}

fish_completion() {
    fish --no-config -c 'source docs/completions/speedbump.fish; complete -C "$argv"' -- "$*" |
        cut -f 1
}

zsh -n docs/completions/_speedbump

commands=$("$program" --help | sed -n '/^Subcommands:/,/^$/p' | awk 'NR > 1 && NF { print $1 }' |
    sort -u | grep -E '^(attach|run|check|list|doctor|calibrate|status|set|pause|resume|detach|discover|dump|experiment|report|compare|bench|agent)$')
[ -n "$commands" ]
compare "bash: commands" "$commands" "$(bash_completion '' | grep -v '^-' | sort -u)"
compare "fish: commands" "$commands" "$(fish_completion 'speedbump ' | grep -v '[./]' | grep -E '^[a-z]+$' | sort -u)"
compare "zsh: commands" "$commands" \
    "$(sed -n '/commands=(/,/)/p' docs/completions/_speedbump | sed -nE "s/^ *'([a-z]+):.*/\1/p" | sort -u)"

page=$(mandoc -Tascii docs/speedbump.1 2>/dev/null | col -b | tr -d '\n' | sed 's/- *//; s/  */ /g')
for command in $commands; do
    # an option stands at the start of its line; the text behind it may name others
    expected=$("$program" "$command" --help | grep -oE '^ +(-[a-z],)?--[a-z-]+' | long_options)
    compare "bash: $command" "$expected" "$(bash_completion "$command" -- | long_options)"
    compare "fish: $command" "$expected" "$(fish_completion "speedbump $command --" | long_options)"
    for option in $expected; do
        if ! grep -qe "$option" docs/completions/_speedbump; then
            echo "zsh: $command lacks $option"
            failed=1
        fi
        if ! grep -qe "$option" <<<"$page"; then
            echo "man page: $command lacks $option"
            failed=1
        fi
    done
done
exit "$failed"
