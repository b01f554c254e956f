// SPDX-License-Identifier: MIT
// No thread is borrowed on aarch64 yet: inject() refuses (can_borrow()) before it comes here.
#include "inject/fire.h"
#include "inject/machine.h"
#include "inject/mapper_payload.h"
#include "inject/payload.h"

namespace speedbump::inject {

struct Fire::Plan {};

uint64_t thread_offset() {
    return 0;
}
uint64_t mapper_offset() {
    return 0;
}

Fire::Fire(std::unique_ptr<Plan> plan) : plan_(std::move(plan)) {}
Fire::~Fire() = default;

Result<std::unique_ptr<Fire>> Fire::prepare(pid_t pid, const std::vector<process::RemoteModule>&,
                                            const Errand&) {
    auto can = can_borrow(pid);
    if (!can) return std::move(can).error();
    return std::unique_ptr<Fire>(new Fire(std::make_unique<Plan>()));
}

Result<FireReport> Fire::fire(std::chrono::steady_clock::time_point) {
    return make_error(ErrorKind::kUnsupported, "no thread is borrowed on aarch64 yet");
}

void Fire::confirm_answer() {}
int Fire::borrowed_error() const {
    return 0;
}
void Fire::heed_late_signal(bool) {}
bool Fire::restore() {
    return true;
}

} // namespace speedbump::inject
