/* SPDX-License-Identifier: MIT */
/* The tests of speed_bump.ko, in the order in which they run. */
#ifndef MODULE_TESTS_H
#define MODULE_TESTS_H

#include "module_harness.h"

#define MODULE_TESTS(TEST)                  \
    TEST(files_and_formats)                 \
    TEST(errno_of_commands)                 \
    TEST(nothing_is_smuggled_in)            \
    TEST(lengths)                           \
    TEST(limits)                            \
    TEST(kinds_of_files)                    \
    TEST(may_not_read)                      \
    TEST(only_root_writes)                  \
    TEST(update_keeps_hits)                 \
    TEST(default_delay)                     \
    TEST(sites_that_are_refused)            \
    TEST(a_name_that_changes_is_not_opened) \
    TEST(live_and_without_trace)            \
    TEST(delays_are_held)                   \
    TEST(counts_are_exact)                  \
    TEST(kinds_of_programs)                 \
    TEST(symbol_rules)                      \
    TEST(huge_files)                        \
    TEST(filter_covers_a_process)           \
    TEST(filter_covers_those_before)        \
    TEST(filter_covers_daemons)             \
    TEST(filter_survives_exec)              \
    TEST(filter_covers_threads)             \
    TEST(filter_covers_namespaces)          \
    TEST(filter_is_as_the_writer_sees)      \
    TEST(filter_of_everyone)                \
    TEST(filter_of_a_number_to_come)        \
    TEST(filter_moves)                      \
    TEST(filter_against_forks)              \
    TEST(kernel_helpers_are_no_loop)        \
    TEST(spins_end_early)                   \
    TEST(signals_that_kill_nobody)          \
    TEST(a_crowd_is_delayed_at_once)        \
    TEST(disabling_waits_for_nobody)        \
    TEST(a_crowd_that_needs_no_slots)       \
    TEST(a_spin_holds_up_no_tracer)         \
    TEST(nobody_waits_for_a_spin)           \
    TEST(a_spin_shares_its_cpu)             \
    TEST(the_list_is_whole_lines)           \
    TEST(readers_take_little_memory)        \
    TEST(many_targets)                      \
    TEST(targets_die_with_their_owner)      \
    TEST(a_device_holds_it_on)              \
    TEST(unmounting)                        \
    TEST(overlay)                           \
    TEST(a_file_that_is_written_to)         \
    TEST(an_overlay_that_is_written_to)     \
    TEST(unload_beside_a_stopped_exec)      \
    TEST(a_failed_renewal_is_tried_again)   \
    TEST(unload_under_load)                 \
    TEST(killed_writers_leave_nothing)      \
    TEST(churn_under_load)                  \
    TEST(bad_input_leaks_nothing)           \
    TEST(use_leaks_nothing)                 \
    TEST(no_memory_is_lost)                 \
    TEST(sbctl_speaks)                      \
    TEST(cost_of_a_hit)

/* The body of a program that a test starts. */
int map_and_fork(const char* path, const char* offset);

#define DECLARE_TEST(name) void name(void);
MODULE_TESTS(DECLARE_TEST)
#undef DECLARE_TEST

#endif
