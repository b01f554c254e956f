// SPDX-License-Identifier: MIT
#include "session/tree_counts.h"

#include <utility>

namespace speedbump::session {

void TreeCounts::refresh(engine::BpfEngine& bpf, Members& members,
                         const std::function<void(const std::string&)>& warn) {
    auto read = bpf.read_counts();
    if (!read) {
        const bool told = failure_.has_value();
        failure_ = std::move(read).error();
        if (!told) warn("calls and delays are shown as they were last read: " + failure_->message);
        return;
    }
    failure_.reset();
    latest_ = members.fold(
        *read, [&bpf](uint32_t target, uint32_t tgid) { bpf.forget_counts(target, tgid); });
}

} // namespace speedbump::session
