// SPDX-License-Identifier: MIT
#include "session/late_files.h"

#include <gmock/gmock.h>

namespace speedbump::session {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const process::FileKey kLibc{1, 2};
const process::FileKey kMath{1, 3};

TEST(LateFiles, AreToldOfOnceWhereProcessesAreBorn) {
    LateFiles late;
    late.add(kLibc, "libc");
    EXPECT_THAT(late.take_untold(), IsEmpty());
    late.born();
    EXPECT_THAT(late.take_untold(), ElementsAre("libc"));
    late.born();
    late.add(kLibc, "libc");
    EXPECT_THAT(late.take_untold(), IsEmpty());
    late.add(kMath, "libm");
    EXPECT_THAT(late.take_untold(), ElementsAre("libm"));
    EXPECT_THAT(late.told(), ElementsAre("libc", "libm"));
}

TEST(LateFiles, AreNoneOnceTheyAreProbedForAll) {
    LateFiles late;
    late.add(kLibc, "libc");
    late.erase(kLibc);
    late.born();
    EXPECT_THAT(late.take_untold(), IsEmpty());
    late.add(kLibc, "libc");
    EXPECT_THAT(late.take_untold(), ElementsAre("libc"));
}

} // namespace
} // namespace speedbump::session
