// SPDX-License-Identifier: MIT
#include "engine/python/python_texts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

namespace speedbump::engine {

Result<Fd> sealed_text(const char* name, const std::string& text) {
    Fd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!file.valid()) return errno_error("memfd_create", errno);
    for (size_t done = 0; done < text.size();) {
        const ssize_t wrote = ::write(file.get(), text.data() + done, text.size() - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) return errno_error("write a text into memory", errno);
        done += static_cast<size_t>(wrote);
    }
    // One target must not change what the next one reads.
    if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL) !=
        0)
        return errno_error("seal a text in memory", errno);
    return file;
}

std::string text_of(const std::set<uint64_t>& modules) {
    return nlohmann::json(modules).dump();
}

std::string text_of(const Regrouping& regrouping) {
    using nlohmann::json;
    json groups = json::array();
    for (size_t i = 0; i < regrouping.groups.size(); ++i) {
        const targets::TargetLine& line = regrouping.groups[i];
        groups.push_back({line.container.text, line.container.is_glob, line.name.text,
                          line.name.is_glob,
                          line.exclude ? json(nullptr) : json(regrouping.line_of[i])});
    }
    const json text = {{"lines", regrouping.lines}, {"groups", groups}};
    return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

} // namespace speedbump::engine
