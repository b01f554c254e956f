// SPDX-License-Identifier: MIT
// Reads stacks from memory that is damaged, and that changes while it is read. Fails on a crash, a
// hang, when nothing was refused or nothing read, or when the walk of frames as the BPF program has
// it (in C) and the loader's find different frames in the same memory.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "../cpu_time.h"
#include "../unit/python_walk_in_c.h"
#include "../unit/stack_image.h"
#include "../unit/walked_frames.h"
#include "mutator.h"
#include "stacks/stack_reader.h"

namespace {

using namespace speedbump;
using namespace speedbump::stacks;

struct Counts {
    size_t read = 0;
    size_t refused = 0;
};

// A word that leads somewhere: into the image, out of it, or round in circles.
uint64_t evil_word(const StackImage& image, fuzz::Random& random) {
    switch (random.below(8)) {
        case 0:
            return 0;
        case 1:
            return ~uint64_t{0} - random.below(4096);
        case 2:
            return random.next();
        case 3:
            return image.leaf_frame;
        case 4:
            return image.main_frame;
        case 5:
            return image.leaf_code;
        default:
            return StackImage::kBase + random.below(image.used() - StackImage::kBase);
    }
}

void damage(StackImage& image, fuzz::Random& random) {
    const uint64_t size = image.used() - StackImage::kBase;
    if (random.below(3) == 0)
        image.bytes()[random.below(size)] = static_cast<char>(random.next());
    else
        image.put(StackImage::kBase + random.below(size / 8) * 8, evil_word(image, random));
}

int read_image(void* memory, void* to, __u32 size, __u64 address) {
    return static_cast<const StackImage*>(memory)->read(address, to, size) ? 0 : -1;
}

void compare_walks(StackImage& image) {
    std::vector<sb_python_frame> c(SB_PYTHON_FRAMES);
    uint32_t fault = 0;
    c.resize(python_walk_in_c(read_image, &image, &image.layout, image.thread, c.data(),
                              SB_PYTHON_FRAMES, &fault));
    const WalkedFrames cpp = walk_frames(image, image.layout, image.thread);
    if (fault == SB_PYTHON_DEEP ? cpp.frames.size() <= c.size()
                                : cpp.frames.size() != c.size() || cpp.fault != fault)
        std::abort();
    if (!c.empty() &&
        std::memcmp(c.data(), cpp.frames.data(), c.size() * sizeof(sb_python_frame)) != 0)
        std::abort();
}

void run(uint64_t seed, Counts& counts) {
    constexpr int kVersions[] = {10, 11, 12, 14};
    constexpr std::chrono::seconds kMaxTime(20); // sanitizers are slow
    fuzz::Random random(seed);
    auto image = std::make_unique<StackImage>(kVersions[random.below(4)]);
    StackImage& kept = *image;
    const bool is_early = random.below(4) == 0; // before the layout is read, or after it
    if (is_early) damage(kept, random);
    ReaderOptions options;
    options.patience = std::chrono::microseconds(0);
    limit_cpu_time(kMaxTime);
    auto reader =
        StackReader::open(std::move(image), kept.interpreter, StackImage::kCodeType, 0, options);
    if (!reader) {
        ++counts.refused;
        if (reader.error().message.empty()) std::abort();
        return;
    }
    for (size_t count = random.below(4); count > 0; --count) damage(kept, random);
    compare_walks(kept);
    if (random.below(2) == 0)
        kept.before_gather = [&kept, &random] {
            if (random.below(4) == 0) damage(kept, random);
        };
    for (int i = 0; i < 3; ++i) {
        const auto sampled = reader->sample();
        if (!sampled) {
            ++counts.refused;
            if (sampled.error().message.empty()) std::abort();
            continue;
        }
        for (const ThreadStack* stack : reader->stacks()) {
            ++(stack->fault == StackFault::kFine ? counts.read : counts.refused);
            if (stack->fault != StackFault::kFine) continue;
            for (const Frame& frame : stack->frames)
                if (frame.function == nullptr) std::abort();
        }
        if (!reader->list_threads()) continue;
        for (const auto& [tid, state] : reader->thread_states()) {
            const WalkedFrames walked = walk_frames(kept, kept.layout, state.address);
            const ThreadStack stack = reader->interpret(tid, walked.frames, random.next());
            if (stack.fault != StackFault::kFine) continue;
            (void)reader->is_certain(stack.frames);
            for (const Frame& frame : stack.frames)
                if (frame.function == nullptr) std::abort();
        }
    }
}

} // namespace

#ifndef SPEEDBUMP_LIBFUZZER
// fuzz_stacks RUNS SECONDS (of CPU time)
int main(int argc, char** argv) {
    const uint64_t runs = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 100000;
    const auto seconds = std::chrono::seconds(argc > 2 ? std::atoi(argv[2]) : 10);
    const auto end = CpuClock::now() + seconds;
    Counts counts;
    uint64_t seed = 0;
    for (; seed < runs && CpuClock::now() < end; ++seed) run(seed, counts);
    std::printf("%llu images: %zu stacks read, %zu refused\n",
                static_cast<unsigned long long>(seed), counts.read, counts.refused);
    return counts.read > 0 && counts.refused > 0 ? 0 : 1;
}
#else
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    uint64_t seed = 0;
    for (size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
    Counts counts;
    run(seed, counts);
    return 0;
}
#endif
