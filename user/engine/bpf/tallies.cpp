// SPDX-License-Identifier: MIT
#include "engine/bpf/tallies.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

#include <cerrno>

#include "abi.h"
#include "util/passing.h"

namespace speedbump::engine {

namespace {

constexpr uint32_t kFirstBatch = 4096;
constexpr int kTries = 10; // of one batch

Counts sum_of(const sb_counts_key& key, const sb_tally* by_cpu, size_t cpus) {
    Counts sum;
    sum.target = key.target;
    sum.process = static_cast<pid_t>(key.tgid);
    for (size_t cpu = 0; cpu < cpus; ++cpu) {
        const sb_counts& part = by_cpu[cpu].counts;
        sum.hits += part.hits;
        sum.delays += part.delays;
        sum.requested += nanoseconds(part.requested_ns);
        sum.measured += nanoseconds(part.measured_ns);
    }
    return sum;
}

} // namespace

Result<std::vector<Counts>> read_tallies(int map) {
    const auto cpus = static_cast<size_t>(libbpf_num_possible_cpus());
    uint32_t size = kFirstBatch;
    std::vector<sb_counts_key> keys(size);
    std::vector<sb_tally> values(size * cpus);
    std::vector<Counts> result;
    uint32_t cursor = 0;
    bool is_first = true;
    int tries = 0;
    for (int error = 0; error != -ENOENT;) { // ENOENT: these were the last
        uint32_t count = size;
        uint32_t next = 0;
        error = bpf_map_lookup_batch(map, is_first ? nullptr : &cursor, &next, keys.data(),
                                     values.data(), &count, nullptr);
        if (error == -ENOSPC && size < SB_MAX_COUNTS) { // a bucket holds more
            size *= 2;
            keys.resize(size);
            values.resize(size * cpus);
            continue;
        }
        if (error != 0 && error != -ENOENT) {
            if (may_pass(-error) && ++tries < kTries) continue;
            return errno_error("read the counters", -error);
        }
        for (uint32_t i = 0; i < count; ++i) {
            const Counts sum = sum_of(keys[i], &values[i * cpus], cpus);
            if (sum.hits != 0) result.push_back(sum);
        }
        cursor = next;
        is_first = false;
        tries = 0;
    }
    return result;
}

} // namespace speedbump::engine
