// SPDX-License-Identifier: MIT
#pragma once

#include <bpf/libbpf.h>

#include <memory>

// What owns libbpf's objects. Skeletons are declared before links, so that links go first.
namespace speedbump::engine {

struct LinkDeleter {
    void operator()(bpf_link* link) const { bpf_link__destroy(link); }
};
using BpfLink = std::unique_ptr<bpf_link, LinkDeleter>;

struct RingDeleter {
    void operator()(ring_buffer* ring) const { ring_buffer__free(ring); }
};
using BpfRing = std::unique_ptr<ring_buffer, RingDeleter>;

// Of any skeleton that bpftool generates.
struct SkeletonDeleter {
    template <typename Type>
    void operator()(Type* skeleton) const {
        Type::destroy(skeleton);
    }
};
template <typename Type>
using BpfSkeleton = std::unique_ptr<Type, SkeletonDeleter>;

} // namespace speedbump::engine
