// SPDX-License-Identifier: MIT
#pragma once

// The loader's end of an attached interpreter.
//
// The loader gets a thread into the process that takes the GIL, loads this library by its path and
// calls serve(channel, core). `channel` is a connected AF_UNIX SOCK_SEQPACKET socket;
// every packet is one JSON object with an "op". Packets are at most kMaxPacket bytes. `core` is a
// descriptor of this library.
//
// loader -> core
//   {"op":"begin", "session":ID, "lines":[I...], "targets":TEXT, "roots":MASK,
//    "pid_namespace":N, "clock_offset_ns":N}
//       First packet, with the table's two memfds (abi.h: settings, counters) as the first
//       SCM_RIGHTS descriptors. TEXT is the whole targets file; when it is too long for a packet
//       "targets" is left out and a third descriptor holds it. "lines" are the indexes, among the
//       parsed lines, of the targets that apply here (exclusions always do); index I has entry I of
//       the table. ID names the session, any string but "". "roots" (default: all bits) is compared
//       with each target's root_mask. "pid_namespace" is the number of the namespace that the
//       process's PID is one of, which goes into its counters. "clock_offset_ns" is what its
//       CLOCK_MONOTONIC is ahead of the host's, on which the table's windows are.
//       "groups":N may be there as well, with a last descriptor: as a "groups" packet.
//       "look":"later" leaves what exists unlooked at until a "look" packet; else it is looked at
//       before the "ready".
//   {"op":"look"}
//       Looks at the functions that exist, but for those of the modules in [KEY...], the text of a
//       descriptor, if there is one: other processes have told of these. Functions of them are
//       found at their first call.
//   {"op":"groups", "number":N}
//       With a descriptor of a text {"lines":[I...], "groups":[[MODULE, GLOB, NAME, GLOB, T]...]}:
//       from now on the functions of these lines are told apart by the groups, of which the last
//       one that matches decides: a function counts, and is delayed, as entry T of the table says,
//       or, with null, not at all. GLOB: whether the half before it is one. Replaces the groups of
//       before.
//   {"op":"list"}      Instead of a begin: what functions are there? Nothing is hooked.
//   {"op":"detach"}    or end of file: the loader is gone. Delays end at once in this process.
//
// core -> loader
//   {"op":"loaded"}    First packet, where `core` is a descriptor, which is closed.
//   {"op":"refused", "reason":TEXT}   nothing was done, the socket is closed.
//   {"op":"ready", "version":"3.12.1", "pid":N, "inherited":BOOL, "from_start":BOOL,
//    "overhead_ns":N, "matched":[{"line":I,"module":..,"name":..,"file":..}...],
//    "warnings":[TEXT...]}
//       The hooks are in; what is delayed from now on, the table says. "inherited": this process
//       was forked from an attached one and was hooked before. "from_start": nothing of its program
//       has run yet.
//   {"op":"matched", "matched":[...]}  more functions, also right after "ready" when there are
//   many; "line" is that of the targets file, whatever their group.
//   {"op":"looked", "modules":[KEY...], "more":BOOL}
//       All that a look has found was told. KEYs stand for the modules that it has seen; "more":
//       another such packet follows.
//   {"op":"grouped", "number":N, "held_ns":N}
//       It is done: later calls count as their new groups. It took the GIL for so long; with a
//       "reason" (and perhaps without held_ns) it failed.
//   {"op":"functions", "functions":[{"module":..,"name":..,"file":..}...]}   part of the list
//   {"op":"gone", "reason":"detach"|"exit"|"listed"}  the hooks are out; the socket is closed.
//
// A process has one session. A second begin with another ID, or beside a session that the program
// itself installed from this very file, is refused; the core of an installed package is another
// file, and works beside.
//
// A forked child keeps the hooks and the table, has no socket, and takes a counter slot of its own.
// When the session is over (`closed` in the settings, or their owner's death, which the kernel
// writes there) a hook does nothing but take itself out. So no delay outlives the loader, with or
// without a socket. What is left of it in such a child the next begin ends.
namespace speedbump::python {

inline constexpr unsigned kMaxPacket = 65536;

// Serves one session on the socket, which it closes; returns when it is over. Called with the GIL
// held, in a thread that has nothing else to do: it blocks all signals. Raises no Python error.
void serve(int channel, int core) noexcept;

// Forgets the channel in a forked child.
void forget_channel();

} // namespace speedbump::python
