// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "util/fd.h"
#include "util/result.h"

namespace speedbump {

// A process apart (util/apart.h) that waits for the end of this one, however it comes, and then
// does what is left to do. It holds no descriptor of this program but those it needs, and no
// directory.
class Heir {
  public:
    // From its return on what is left behind is dealt with: begin to leave something only then.
    // `kept`: descriptors that `work` needs. `work` makes system calls and nothing else, on a copy
    // of this memory as it is now.
    template <typename Work>
    static Result<Heir> start(const char* name, std::initializer_list<int> kept, Work work) {
        return start_with(
            name, kept, [](void* argument) { (*static_cast<Work*>(argument))(); }, &work);
    }
    Heir(Heir&& other) noexcept
        : pid_(std::exchange(other.pid_, -1)), begin_(std::move(other.begin_)) {}
    Heir& operator=(Heir&&) = delete;
    // Dismisses it; what is left is the caller's to have dealt with.
    ~Heir();
    // Has it begin now, and go on when this program has ended: it is not dismissed any more.
    void begin();

    pid_t pid() const { return pid_; }

  private:
    Heir(pid_t pid, Fd begin) : pid_(pid), begin_(std::move(begin)) {}
    static Result<Heir> start_with(const char* name, std::initializer_list<int> kept,
                                   void (*work)(void*), void* argument);

    pid_t pid_ = -1;
    Fd begin_; // an event counter that it waits for
};

} // namespace speedbump
