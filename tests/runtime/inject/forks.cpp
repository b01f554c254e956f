// SPDX-License-Identifier: MIT
// Targets that fork while they are entered. CMake says which core to load (TEST_CORE), which
// Pythons to try (TEST_PYTHONS), and where the library lock_meets_fork is.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "inject/injector.h"
#include "target_process.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using test::TargetProcess;

const std::vector<std::string> kPythons = test::paths_of(TEST_PYTHONS);

// Where a failure leaves a child that hangs.
void kill_children(pid_t pid) {
    std::ifstream children(fmt::format("/proc/{0}/task/{0}/children", pid));
    for (pid_t child; children >> child;) kill(child, SIGKILL);
}

// Before 3.12 CPython waits in the child for the lock that PyThreadState_New() holds, for ever.
TEST(Forks, MeetNoLockOfTheThreadState) {
    for (const std::string& python : kPythons) {
        SCOPED_TRACE(python);
        TargetProcess target(
            {"env", "LD_PRELOAD=" LOCK_MEETS_FORK, python, PROGRAM_DIR "/targets.py", "families"});
        ASSERT_TRUE(target.alive());
        inject::InjectOptions options;
        options.core = TEST_CORE;
        bool goes_on = true;
        for (int i = 0; i < 3 && goes_on; ++i) {
            auto injection = inject::inject(target.pid(), options);
            goes_on = target.beats_in(10s, 20);
            EXPECT_TRUE(goes_on) << "a child hangs, or the target ended: status "
                                 << target.status();
            EXPECT_TRUE(injection) << injection.error().message;
        }
        kill_children(target.pid());
    }
}

} // namespace
} // namespace speedbump
