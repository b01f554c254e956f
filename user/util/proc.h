// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace speedbump {

// The text of a file of /proc; empty when it can't be read.
std::string read_proc(const std::string& path);

// The value of a field, such as "State", in the text of a /proc/PID/status: what follows the colon
// and blanks, up to the end of the line; empty when there is none.
std::string_view status_field(std::string_view status, std::string_view name);
// The same of a process that is read for it.
std::string status_field(pid_t pid, std::string_view name);

// The processes that /proc shows; empty when it can't be read.
std::vector<pid_t> list_pids();

// Whether the first thread of a process has ended while others go on: /proc shows it as a zombie
// without memory then.
bool has_lost_main_thread(pid_t pid);

// Whether a process is gone, or has begun to end as a whole: what /proc says of its memory and
// namespaces says nothing then.
bool is_ending(pid_t pid);

// The parent's PID as this program sees it; 0 when it sees none.
pid_t parent_of(pid_t pid);

// The id that a process or thread has in its own PID namespace, by its status; 0 when it is gone.
pid_t innermost_id(std::string_view status);

// What a stat file of a process or thread says, /proc/PID/stat or /proc/PID/task/TID/stat
// (proc_pid_stat(5)).
struct ProcStat {
    std::string name; // which may hold anything, parentheses and blanks too
    char state = 0;
    std::vector<uint64_t> numbers; // from the fourth field on; negative ones as in two's complement

    // By the manual's count, in which the parent is the fourth; 0 of one that is not there.
    uint64_t field(size_t number) const;
};
// nullopt: it is no such text, or empty, as of a process that has ended.
std::optional<ProcStat> parse_stat(std::string_view text);
std::optional<ProcStat> read_stat(const std::string& path);

} // namespace speedbump
