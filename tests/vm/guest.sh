#!/bin/sh
# SPDX-License-Identifier: MIT
# Inside the machine: guest.sh bpf|kmod|lockdown. Runs guest_test.py, and those tests of tests/runtime
# that say what a session does and not how fast the machine is; with SB_SHORT=1 some of them.
export SPEEDBUMP_BINARY=/bin/speedbump SPEEDBUMP_PROGRAMS=/programs PYTHONDONTWRITEBYTECODE=1
export SB_ENGINE="$1" SPEEDBUMP_TEST_EMULATED=1

session="delays_test:test_counters_are_exact_and_delay_zero_only_counts,\
test_last_line_decides_and_excludes,test_two_sessions_on_one_function_add_up
tree_test:test_descendants_that_exist,test_children_of_later,test_orphans_of_before_and_later,\
test_children_from_their_first_call_when_only_the_tree_maps_the_file,\
test_the_tree_outlives_its_root,test_threads_of_before_and_later,\
test_exec_goes_on_in_the_new_program,test_several_pids,\
test_pid_of_a_line_is_for_that_process_and_its_descendants,\
test_outsiders_of_before_pay_nothing,test_unrelated_process_with_the_same_library
control_test:test_set_pause_and_resume_change_the_next_call,test_a_session_may_begin_paused,\
test_detach_returns_when_the_code_is_as_before,test_nothing_stays_behind
probe_sites_test:test_what_becomes_of_nops_is_not_said_where_it_was_not_tried
faults_test:test_target_exits_while_attached,test_target_execs_another_program_while_attached,\
test_doctor_tells_of_what_is_absent,test_kernel_module_that_is_not_there
restore_test:test_second_ctrl_c_leaves_at_once_and_nothing_behind
run_test:test_slowed_from_the_first_call_and_exactly_counted,\
test_children_and_libraries_of_the_program
mappings_test:test_program_deleted_while_it_runs,\
test_path_that_nothing_maps_yet_is_slowed_from_its_first_call"
# What the module leaves to BPF.
[ "$1" != bpf ] || session="$session
delays_test:test_every_nth_is_exact_over_the_tree,test_every_nth_call_of_one_thread,\
test_start_and_duration_of_a_line
experiment_test:test_serial_functions_have_criticality_1"
[ "${SB_SHORT:-}" != 1 ] || session="delays_test:test_counters_are_exact_and_delay_zero_only_counts
tree_test:test_children_from_their_first_call_when_only_the_tree_maps_the_file,\
test_orphans_of_before_and_later
control_test:test_detach_returns_when_the_code_is_as_before
probe_sites_test:test_what_becomes_of_nops_is_not_said_where_it_was_not_tried"
# Entering processes: where the host's own tests don't do it, and where the kernel lets them be written to in
# another way (proc_mem.force_override=ptrace).
if [ "$1" = bpf ]; then
    session="$session
attach_test"
    if [ "${SB_SHORT:-}" = 1 ] || [ "$(uname -m)" != aarch64 ]; then
        session="$session:test_a_function_is_slowed_and_as_fast_as_before_afterwards,test_run_slows_python_from_its_first_line"
    fi
    [ "$(uname -m)" = aarch64 ] || session="$session
inprocess_test:test_calls_are_delayed_and_counted_and_code_is_restored"
fi
[ "$1" != lockdown ] || session=

[ "$1" != kmod ] || insmod /speed_bump.ko max_targets=64 || exit 1
failed=0
for entry in ${SB_TESTS:-guest_test $session}; do
    file=${entry%%:*}
    names=
    [ "$entry" = "$file" ] || names=$(echo "${entry#*:}" | tr , ' ')
    echo "== $1: $file"
    # shellcheck disable=SC2086 # words
    python3 "/tests/$file.py" $names
    status=$?
    # 77: of these tests nothing is for this engine
    [ $status = 0 ] || [ $status = 77 ] || failed=1
done
exit $failed
