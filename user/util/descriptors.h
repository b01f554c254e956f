// SPDX-License-Identifier: MIT
#pragma once

namespace speedbump {

// Takes the descriptors 0 to 2 where this program was started without them: what it opens later
// would get them, and what it writes to a terminal would go into a map of BPF, a socket or a
// result. Reading and writing them fails as it does without any. To be called before anything is
// opened.
void hold_standard_streams();

// As many descriptors as this program may have: a set of probes, a process, a link each takes some.
void allow_many_descriptors();
// As many as it was started with, for a program that is to be executed: one that select()s, or
// closes all that it may have, is not to meet more than usual. Fit for a forked child.
void allow_descriptors_as_before();

} // namespace speedbump
