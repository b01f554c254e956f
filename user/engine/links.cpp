// SPDX-License-Identifier: MIT
#include "engine/links.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>

#include "engine/shielded.h"

namespace speedbump::engine {

namespace {

// Of the perf event source "uprobe": 0 where there is none.
uint32_t uprobe_event_type() {
    static const uint32_t type = [] {
        uint32_t number = 0;
        std::ifstream("/sys/bus/event_source/devices/uprobe/type") >> number;
        return number;
    }();
    return type;
}

// Its format/retprobe is "config:0" on every kernel that has it (perf_uprobe, since 4.17).
constexpr uint64_t kReturnProbe = 1;
// As format/ref_ctr_offset is "config:32-63" (since 4.20).
constexpr unsigned kSemaphoreShift = 32;

} // namespace

Links& Links::operator=(Links&& other) noexcept {
    Links old(std::move(other)); // takes out what was here when it goes
    descriptors_.swap(old.descriptors_);
    return *this;
}

Links::~Links() {
    close_shielded(descriptors_);
}

void Links::append(Links&& other) {
    descriptors_.insert(descriptors_.end(), other.descriptors_.begin(), other.descriptors_.end());
    other.descriptors_.clear();
}

void Links::release_all(std::vector<Links> sets) {
    Links all;
    for (Links& set : sets) all.append(std::move(set));
}

int Links::attach_multi(int program, const std::string& path,
                        const std::vector<UprobePlace>& places, pid_t pid) {
    std::vector<unsigned long> offsets;
    std::vector<unsigned long> semaphores;
    std::vector<__u64> cookies;
    for (const UprobePlace& place : places) {
        offsets.push_back(place.file_offset);
        semaphores.push_back(place.semaphore);
        cookies.push_back(place.cookie);
    }
    LIBBPF_OPTS(bpf_link_create_opts, options);
    options.uprobe_multi.path = path.c_str();
    options.uprobe_multi.offsets = offsets.data();
    options.uprobe_multi.ref_ctr_offsets = semaphores.data();
    options.uprobe_multi.cookies = cookies.data();
    options.uprobe_multi.cnt = static_cast<__u32>(places.size());
    options.uprobe_multi.pid = pid < 0 ? 0 : static_cast<__u32>(pid);
    descriptors_.reserve(descriptors_.size() + 1);
    const int result = run_shielded(1, [&](size_t) {
        return bpf_link_create(program, 0, BPF_TRACE_UPROBE_MULTI, &options);
    })[0];
    if (result < 0) return -result;
    descriptors_.push_back(result);
    return 0;
}

std::vector<int> Links::attach_perf(int program, const std::string& path,
                                    const std::vector<UprobePlace>& places, pid_t pid) {
    perf_event_attr attributes = {};
    attributes.size = sizeof(attributes);
    attributes.type = uprobe_event_type();
    if (attributes.type == 0) return std::vector<int>(places.size(), EOPNOTSUPP);
    attributes.uprobe_path = reinterpret_cast<uint64_t>(path.c_str());
    descriptors_.reserve(descriptors_.size() + places.size());
    std::vector<int> results = run_shielded(places.size(), [&](size_t number) {
        const UprobePlace& place = places[number];
        if (place.semaphore > UINT32_MAX) return -EOPNOTSUPP;
        attributes.config =
            (place.at_return ? kReturnProbe : 0) | (place.semaphore << kSemaphoreShift);
        attributes.probe_offset = place.file_offset;
        LIBBPF_OPTS(bpf_link_create_opts, options);
        options.perf_event.bpf_cookie = place.cookie;
        const long event = syscall(SYS_perf_event_open, &attributes, pid, pid < 0 ? 0 : -1, -1,
                                   PERF_FLAG_FD_CLOEXEC);
        if (event < 0) return -errno;
        const int fd = static_cast<int>(event);
        int link = bpf_link_create(program, fd, BPF_PERF_EVENT, &options);
        if (link >= 0 && ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) != 0) {
            const int error_number = errno;
            ::close(link);
            link = -error_number;
        }
        ::close(fd); // the link holds the event
        return link;
    });
    for (int& result : results) {
        if (result >= 0) descriptors_.push_back(result);
        result = std::max(-result, 0);
    }
    return results;
}

} // namespace speedbump::engine
