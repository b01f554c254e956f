# SPDX-License-Identifier: MIT
# fish completion of speedbump: put this file into ~/.config/fish/completions/.

complete -c speedbump -n __fish_use_subcommand -f -l help -s h -d 'print the options'
complete -c speedbump -n __fish_use_subcommand -f -l version -d 'print the version'
complete -c speedbump -n __fish_use_subcommand -f -a attach -d 'slow a running process tree down'
complete -c speedbump -n __fish_use_subcommand -f -a run -d 'start a program slowed'
complete -c speedbump -n __fish_use_subcommand -f -a check -d 'list what each line matches'
complete -c speedbump -n __fish_use_subcommand -f -a list -d 'list the functions of a process'
complete -c speedbump -n __fish_use_subcommand -f -a doctor -d 'what works on this host'
complete -c speedbump -n __fish_use_subcommand -f -a calibrate -d 'floor and accuracy here'

set -l any '__fish_seen_subcommand_from attach run check list doctor calibrate'
complete -c speedbump -n $any -s h -l help -d 'print the options and examples'
complete -c speedbump -n $any -l json -d 'JSON documents instead of tables'
complete -c speedbump -n $any -s o -l output -r -d 'write results to a file'
complete -c speedbump -n $any -s v -l verbose -d 'say more'
complete -c speedbump -n $any -s q -l quiet -d 'only results and warnings'

set -l with_pid '__fish_seen_subcommand_from attach check list doctor'
complete -c speedbump -n $with_pid -s p -l pid -x -a '(__fish_complete_pids)' -d 'a process'

set -l session '__fish_seen_subcommand_from attach run'
complete -c speedbump -n $session -l no-children -d 'leave the descendants alone'
complete -c speedbump -n $session -l paused -d 'start without delays'
complete -c speedbump -n $session -l entry-only -d 'probe the first instruction'
complete -c speedbump -n $session -l delay -x -d 'delay of lines that set none'
complete -c speedbump -n $session -l every -x -d 'delay each Nth call'
complete -c speedbump -n $session -l start -x -d 'first delay after this time'
complete -c speedbump -n $session -l duration -x -d 'last delay after this time'
complete -c speedbump -n $session -l engine -x -a 'auto bpf kmod' -d 'what delays'
complete -c speedbump -n $session -l missing -x -a 'error warn ignore' -d 'lines without a match'
complete -c speedbump -n $session -l stats -x -d 'time between two looks'

set -l attach '__fish_seen_subcommand_from attach'
complete -c speedbump -n $attach -l cgroup -r -d 'all processes of a cgroup'

set -l check '__fish_seen_subcommand_from check'
complete -c speedbump -n $check -l no-children -d 'leave the descendants alone'
complete -c speedbump -n $check -l exe -r -d 'look at this program or library'
complete -c speedbump -n $check -l entry-only -d 'probe the first instruction'
