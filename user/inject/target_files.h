// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "util/fd.h"
#include "util/result.h"

// Files of a target. They are reached through a descriptor of its root, with links resolved inside
// of it (openat2(2), RESOLVE_IN_ROOT), so nothing that the target does to its links leads out.
namespace speedbump::inject {

// The core's file as the target reaches it.
struct CorePlace {
    // By the same absolute path, where that is the same file; or a name in `directory`; empty: by a
    // descriptor, through the target's /proc.
    std::string path;
    // Where the target has no /proc: a directory in no name space that holds a copy, to which the
    // thread that loads it goes. It is gone with its last user.
    Fd directory;
};
Result<CorePlace> place_core(pid_t pid, const std::string& path, const Fd& core);

// A script in the target's /tmp, readable by all, whose name can't be guessed. Its place is known
// before it is there, so that whoever is to remove it can be there first.
class TargetScript {
  public:
    static Result<TargetScript> find_place(pid_t pid);
    // Creates it; at most once.
    Result<void> write(std::string_view text) const;
    ~TargetScript();
    TargetScript(TargetScript&&) = default;
    TargetScript& operator=(TargetScript&&) = delete;

    const std::string& path() const { return path_; } // in the target's root
    const Fd& directory() const { return directory_; }
    const std::string& name() const { return name_; }

  private:
    TargetScript() = default;
    Fd directory_;
    std::string name_;
    std::string path_;
};

// 128 random bits in hexadecimal.
Result<std::string> make_token();

// A socket that listens under an abstract name in the target's network name space.
Result<Fd> listen_abstract(pid_t pid, const std::string& name);

} // namespace speedbump::inject
