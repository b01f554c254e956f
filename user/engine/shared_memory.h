// SPDX-License-Identifier: MIT
#pragma once

#include <linux/futex.h>

#include <cstdint>

#include "util/fd.h"
#include "util/result.h"

// Memory that targets map, too.
namespace speedbump::engine {

// The robust list of a thread that owns a table, with at most one entry. The kernel walks it when
// the thread dies (futex(2), exit_robust_list()); it lies in our own memory, and only the word that
// the kernel then writes is shared. A pthread mutex would keep its links in the shared page.
class Ownership {
  public:
    // `owner`: the word. kInvalid: this thread owns a table already.
    Result<void> take(uint32_t& owner);
    void give_up();

  private:
    robust_list_head head_{};
    robust_list entry_{};
    robust_list_head* before_ = nullptr; // the C library's, to be put back
};
Ownership& owned_by_this_thread();

// A memfd that can neither grow nor shrink, mapped here with `protection`. `further_seals` are put
// on once that mapping is there.
Result<void*> make_shared_memory(const char* name, uint64_t bytes, int protection,
                                 int further_seals, Fd& fd);

} // namespace speedbump::engine
