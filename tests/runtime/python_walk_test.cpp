// SPDX-License-Identifier: MIT
// bpf/python_walk.h in the kernel: the program makes the same frames of a stack image that lies in
// this process as the loader does, which reads it from outside. Needs root.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <thread>

#include "../unit/stack_image.h"
#include "../unit/walked_frames.h"
#include "stacks/sampler.h"
#include "util/clock.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;
using stacks::StackImage;

// The image at its own addresses.
class Mapped {
  public:
    explicit Mapped(StackImage& image) : size_(image.bytes().size()) {
        void* const wanted = reinterpret_cast<void*>(StackImage::kBase); // NOLINT: its address
        address_ = mmap(wanted, size_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | MAP_FIXED_NOREPLACE, -1, 0);
        if (address_ != wanted) return;
        std::memcpy(address_, image.bytes().data(), size_);
    }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;
    ~Mapped() {
        if (is_there()) munmap(address_, size_);
    }
    bool is_there() const { return address_ != MAP_FAILED; }

  private:
    size_t size_;
    void* address_;
};

// A thread that waits until it is told to end.
class Sleeper {
  public:
    Sleeper() {
        std::promise<pid_t> started;
        auto tid = started.get_future();
        thread_ = std::thread([this, &started] {
            started.set_value(gettid());
            end_.get_future().wait();
        });
        tid_ = tid.get();
    }
    Sleeper(const Sleeper&) = delete;
    Sleeper& operator=(const Sleeper&) = delete;
    ~Sleeper() {
        end_.set_value();
        thread_.join();
    }
    pid_t tid() const { return tid_; }

  private:
    std::promise<void> end_;
    pid_t tid_ = 0;
    std::thread thread_;
};

// What the programs have of a thread that they are told to be this one of the image: of the calling
// thread, which goes on running until it was sampled, or of one that is asleep.
stacks::WalkedFrames walk_in_bpf(const StackImage& image, pid_t tid) {
    stacks::WalkedFrames walked;
    walked.fault = SB_PYTHON_NONE;
    auto sampler = stacks::StackSampler::open(1ms);
    if (!sampler) {
        ADD_FAILURE() << sampler.error().message;
        return walked;
    }
    (*sampler)->set_thread_states(getpid(), {{tid, {image.thread, 0}}});
    EXPECT_TRUE((*sampler)->add_process(getpid(), &image.layout));
    bool is_sampled = false;
    const std::function<void(const stacks::ThreadSample&)> take =
        [&](const stacks::ThreadSample& sample) {
            if (sample.head.tid != static_cast<__u32>(tid)) return;
            EXPECT_EQ(sample.head.on_cpu != 0, tid == gettid());
            is_sampled = true;
            walked.fault = sample.head.python_fault;
            walked.frames.assign(sample.frames.begin(), sample.frames.end());
        };
    while (!is_sampled) {
        if (tid != gettid()) {
            EXPECT_TRUE((*sampler)->threads(getpid()));
        }
        (*sampler)->drain(take, 1s);
    }
    return walked;
}

class EachVersion : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Walk, EachVersion, testing::Values(10, 11, 12, 14));

void expect_same(StackImage& image, uint32_t fault) {
    const Mapped mapped(image);
    ASSERT_TRUE(mapped.is_there()) << std::strerror(errno);
    stacks::WalkedFrames outside =
        stacks::walk_frames(process::ProcessSource(getpid()), image.layout, image.thread);
    EXPECT_EQ(outside.fault, fault);
    if (fault == SB_PYTHON_DEEP) outside.frames.resize(SB_PYTHON_FRAMES);
    const Sleeper sleeper;
    for (const pid_t tid : {gettid(), sleeper.tid()}) {
        const stacks::WalkedFrames bpf = walk_in_bpf(image, tid);
        EXPECT_EQ(bpf.fault, fault);
        ASSERT_EQ(bpf.frames.size(), outside.frames.size());
        EXPECT_EQ(std::memcmp(bpf.frames.data(), outside.frames.data(),
                              bpf.frames.size() * sizeof(sb_python_frame)),
                  0);
    }
}

TEST_P(EachVersion, OfAWholeStack) {
    StackImage image(GetParam());
    expect_same(image, SB_PYTHON_FINE);
}

TEST_P(EachVersion, OfACircle) {
    StackImage image(GetParam());
    image.put(image.main_frame + image.layout.frame_previous, image.leaf_frame);
    expect_same(image, SB_PYTHON_DEEP);
}

TEST_P(EachVersion, OfAStackThatEndsInNothing) {
    StackImage image(GetParam());
    image.put(image.main_frame + image.layout.frame_previous, uint64_t{0xdead0000});
    expect_same(image, SB_PYTHON_UNREADABLE);
}

} // namespace
} // namespace speedbump
