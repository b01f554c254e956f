// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

#include "engine/engine.h"

namespace speedbump::engine {

// The functions that the processes of a session say they slow, each once. A process may say what it
// likes, as often as it likes: of each so many are kept, with texts of bounded length, and the
// others counted.
class PythonMatches {
  public:
    static constexpr size_t kMaxOfProcess = 65'536;
    static constexpr size_t kMaxText = 4096;                               // bytes; longer is cut
    static constexpr size_t kMaxBytesOfProcess = size_t{32} * 1024 * 1024; // of texts

    // How many of them were left out. One that another process has named already is passed over.
    size_t add(std::vector<PythonMatch> matches);

    const std::vector<PythonMatch>& all() const { return all_; }
    uint64_t left_out() const { return left_out_; }

  private:
    struct Kept {
        size_t matches = 0;
        size_t bytes = 0;
    };

    std::vector<PythonMatch> all_;
    std::unordered_set<size_t> known_; // hashes of all of them
    std::map<pid_t, Kept> kept_;
    uint64_t left_out_ = 0;
};

} // namespace speedbump::engine
