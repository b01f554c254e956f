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

// Of all links that one child makes: it goes on when this program has been killed.
constexpr size_t kPlacesOfOneChild = 1024;

// What makes a link of many places.
class MultiPlaces {
  public:
    // `path` is to outlive it.
    MultiPlaces(const std::string& path, const std::vector<UprobePlace>& places) : path_(path) {
        for (const UprobePlace& place : places) {
            offsets_.push_back(place.file_offset);
            semaphores_.push_back(place.semaphore);
            cookies_.push_back(place.cookie);
        }
    }
    // For one process or, with -1, for all: the descriptor, or -errno.
    int link(int program, pid_t pid) {
        LIBBPF_OPTS(bpf_link_create_opts, options);
        options.uprobe_multi.path = path_.c_str();
        options.uprobe_multi.offsets = offsets_.data();
        options.uprobe_multi.ref_ctr_offsets = semaphores_.data();
        options.uprobe_multi.cookies = cookies_.data();
        options.uprobe_multi.cnt = static_cast<__u32>(offsets_.size());
        options.uprobe_multi.pid = pid < 0 ? 0 : static_cast<__u32>(pid);
        return bpf_link_create(program, 0, BPF_TRACE_UPROBE_MULTI, &options);
    }

  private:
    const std::string& path_;
    std::vector<unsigned long> offsets_;
    std::vector<unsigned long> semaphores_;
    std::vector<__u64> cookies_;
};

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
    descriptors_.reserve(descriptors_.size() + 1);
    MultiPlaces all(path, places);
    const int result = run_shielded(1, [&](size_t) { return all.link(program, pid); })[0];
    if (result < 0) return -result;
    descriptors_.push_back(result);
    return 0;
}

std::vector<Links> Links::attach_multi_each(int program, const std::string& path,
                                            const std::vector<UprobePlace>& places,
                                            const std::vector<pid_t>& pids) {
    MultiPlaces all(path, places);
    std::vector<Links> links(pids.size());
    for (Links& one : links) one.descriptors_.reserve(1);
    const size_t at_once =
        std::max<size_t>(1, kPlacesOfOneChild / std::max<size_t>(1, places.size()));
    for (size_t begin = 0; begin < pids.size(); begin += at_once) {
        const size_t count = std::min(at_once, pids.size() - begin);
        const std::vector<int> results =
            run_shielded(count, [&](size_t i) { return all.link(program, pids[begin + i]); });
        for (size_t i = 0; i < count; ++i)
            if (results[i] >= 0) links[begin + i].descriptors_.push_back(results[i]);
    }
    return links;
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
