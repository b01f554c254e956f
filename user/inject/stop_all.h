// SPDX-License-Identifier: MIT
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "inject/target_lock.h"
#include "util/clock.h"
#include "util/result.h"

namespace speedbump::inject {

inline constexpr size_t kChangedBytes = 5;
inline constexpr size_t kLongestChanged = 19; // with the instruction that they end in

// Code of a process that becomes other code while all its threads stand still. A first byte that is
// the same before and after is neither looked at nor written: a breakpoint may have come there.
struct CodeChange {
    uint64_t address = 0;
    std::array<unsigned char, kChangedBytes> before{};
    std::array<unsigned char, kChangedBytes> after{};
    // All that gives way, as it has to be there, or else nothing is changed; it begins with
    // `before`. Empty: that alone.
    std::basic_string<unsigned char> whole{};
    // The instructions that give way. Threads that stand behind the beginning of the first are
    // moved first: to the same place of a copy, `moved`, that does the same and then goes on behind
    // them. 0: none can stand there.
    uint32_t length = 0;
    std::array<uint64_t, kLongestChanged> moved{}; // by distance from the address
    // The answer.
    enum class Outcome {
        kNotTried,
        kDone,
        kOtherCode, // it is not what it was before, nor what it is to be
        kNoCode,    // nothing is mapped there any more
        kRefused,
    } outcome = Outcome::kNotTried;
    int error_number = 0; // of kRefused
};

// Bytes that are there as long as the process is the one that is meant, running the same program.
struct Witness {
    uint64_t address = 0;
    std::array<unsigned char, 16> bytes{};
};

// A range of code in which no thread is, nor comes back to: as far as its stack and the signal
// frames there tell.
struct Quiet {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool is_quiet = false; // the answer
};

// Stops all threads of the process, none of them in a system call that this would disturb, makes
// the changes whose code is what it was before, and lets them go. Each change is one write within a
// page, so that whoever dies meanwhile leaves all of it or nothing. kNotFound: the witness is not
// there, or the process is gone; kTimeout: they could not all be stopped, with why; then nothing
// was changed.
// `quiet`, where given, is looked at after the changes. Program counters may have been moved also
// where no change was made: `moved` is to stay until it is quiet, whatever the answer is.
Result<void> change_code(const Turn& turn, const Witness& witness, std::span<CodeChange> changes,
                         Quiet* quiet, Clock::time_point deadline);

} // namespace speedbump::inject
