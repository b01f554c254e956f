# SPDX-License-Identifier: MIT
# bash completion of speedbump: source this file, or put it into
# /usr/share/bash-completion/completions/ as "speedbump".

_speedbump_sessions() {
    speedbump status --json 2>/dev/null | sed -nE 's/.*"pid":([0-9]+).*/\1/p'
}

_speedbump() {
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
    local command=${COMP_WORDS[1]-} word options
    local output='--json --output --verbose --quiet --help'
    local session='--no-children --paused --entry-only --delay --every --start --duration
        --engine --missing --stats --control'
    COMPREPLY=()

    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W \
            'attach run check list discover dump doctor calibrate bench status set pause resume
                detach experiment report compare agent --help --version' -- "$current")
        return
    fi
    if [ "$command" = run ]; then
        # behind "--" stands a command line of its own
        for ((word = 2; word < COMP_CWORD; word++)); do
            if [ "${COMP_WORDS[word]}" = -- ]; then
                if [ "$((word + 1))" -eq "$COMP_CWORD" ]; then
                    mapfile -t COMPREPLY < <(compgen -c -- "$current")
                else
                    mapfile -t COMPREPLY < <(compgen -f -- "$current")
                fi
                return
            fi
        done
    fi
    case $previous in
    -p | --pid)
        mapfile -t COMPREPLY < <(compgen -W "$(cd /proc && echo [0-9]*)" -- "$current")
        return
        ;;
    --engine)
        mapfile -t COMPREPLY < <(compgen -W 'auto bpf kmod inprocess' -- "$current")
        return
        ;;
    --missing)
        mapfile -t COMPREPLY < <(compgen -W 'error warn ignore' -- "$current")
        return
        ;;
    --code)
        mapfile -t COMPREPLY < <(compgen -W 'basic deep_static threads' -- "$current")
        return
        ;;
    --threads)
        mapfile -t COMPREPLY < <(compgen -W 'all main only_active' -- "$current")
        return
        ;;
    --session)
        mapfile -t COMPREPLY < <(compgen -W "$(_speedbump_sessions)" -- "$current")
        return
        ;;
    --control)
        mapfile -t COMPREPLY < <(compgen -W 'fifo:' -- "$current")
        return
        ;;
    --progress)
        mapfile -t COMPREPLY < <(compgen -W \
            'native: python: latency: usdt: syscall: command: file: http: device:' -- "$current")
        return
        ;;
    --delay | --start | --duration | --stats | --every | --for | --budget | --rate | --top) return ;;
    --cgroup)
        mapfile -t COMPREPLY < <(compgen -d -- "$current")
        return
        ;;
    esac
    if [[ $current == -* ]]; then
        case $command in
        attach) options="--pid --cgroup $session $output" ;;
        run) options="$session $output" ;;
        check) options="--pid --no-children --exe --entry-only --engine $output" ;;
        discover)
            options="--pid --no-children --for --native --no-native --no-python --budget --rate
                --top --output --collapsed --html --experiment --json --verbose --help"
            ;;
        dump) options="--pid --no-children $output" ;;
        bench) options="--code --threads --duration --python --pid $output" ;;
        list) options="--pid --no-python $output" ;;
        doctor) options="--pid $output" ;;
        experiment)
            options="--pid --cgroup --ab --at --at-slurm --at-pods --at-binary --exe --where --fail-if-worse --junit --progress --doses --blocks --precision --time --seed
                --positive --bisect --whole --max-slowdown --max-cpu --slice --settle --live --no-off
                --engine
                --no-children --html $output"
            ;;
        report) options="--html $output" ;;
        compare) options="--fail-if-worse --junit $output" ;;
        set | pause | resume | detach) options="--session $output" ;;
        calibrate | status) options="$output" ;;
        agent) options="--help" ;;
        *) options= ;;
        esac
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
        return
    fi
    if [ "$command" = status ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(_speedbump_sessions)" -- "$current")
    elif [ "$command" = bench ]; then
        mapfile -t COMPREPLY < <(compgen -W inspect -- "$current")
    elif [ "$command" = set ]; then
        mapfile -t COMPREPLY < <(compgen -W 'delay= every= start= duration=' -- "$current")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
    fi
}
complete -o filenames -F _speedbump speedbump
