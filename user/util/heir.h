// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

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
    Heir(Heir&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}
    Heir& operator=(Heir&&) = delete;
    // Dismisses it; what is left is the caller's to have dealt with.
    ~Heir();

    pid_t pid() const { return pid_; }

  private:
    explicit Heir(pid_t pid) : pid_(pid) {}
    static Result<Heir> start_with(const char* name, std::initializer_list<int> kept,
                                   void (*work)(void*), void* argument);

    pid_t pid_ = -1;
};

} // namespace speedbump
