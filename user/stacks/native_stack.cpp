// SPDX-License-Identifier: MIT
#include "stacks/native_stack.h"

#include <algorithm>
#include <utility>

#include "stacks/native_registers.h"
#include "util/clock.h"

namespace speedbump::stacks {
namespace {

// For libraries mapped meanwhile: the longer nothing has changed, the more seldom.
constexpr Clock::duration kLookSoon = std::chrono::milliseconds(10);
constexpr Clock::duration kLookAgain = std::chrono::seconds(1);
// A process that loads ever new files is not followed any more.
constexpr size_t kMaxFiles = 4096;

} // namespace

class NativeUnwinder::Impl {
  public:
    Impl(pid_t pid, std::shared_ptr<NativeFiles> files) : pid_(pid), files_(std::move(files)) {}

    Result<bool> map_code();
    NativeStack unwind(Registers registers, std::span<const char> stack);
    uint64_t changes() const { return changes_; }

  private:
    Result<bool> look_in_passing();

    pid_t pid_;
    std::shared_ptr<NativeFiles> files_;
    std::string key_; // of what is mapped
    uint64_t changes_ = 0;
    std::shared_ptr<AddressSpace> space_;
    std::set<std::shared_ptr<NativeFile>> used_; // all that ever were mapped
    Clock::time_point looked_at_{};
    Clock::duration look_after_ = kLookSoon; // when a stack leads nowhere
};

// Looks at what the process maps; cheap when that is what it was. Whether it was not.
Result<bool> NativeUnwinder::Impl::map_code() {
    looked_at_ = Clock::now();
    auto code = read_code(pid_);
    if (!code) return std::move(code).error();
    if (space_ && (code->key == key_ || used_.size() > kMaxFiles)) return false;
    auto space = files_->space_of(pid_, *code);
    if (!space) return std::move(space).error();
    space_ = std::move(*space);
    key_ = std::move(code->key);
    ++changes_;
    used_.insert(space_->files().begin(), space_->files().end());
    return true;
}

// As map_code(); what it took counts for all processes together.
Result<bool> NativeUnwinder::Impl::look_in_passing() {
    const auto before = thread_cpu_time();
    auto looked = map_code();
    files_->looked(thread_cpu_time() - before);
    return looked;
}

NativeStack NativeUnwinder::Impl::unwind(Registers registers, std::span<const char> stack) {
    if (Clock::now() > looked_at_ + kLookAgain && files_->may_look(false) && !look_in_passing())
        return {};
    NativeStack result = space_->unwind(pid_, registers, stack);
    if (!result.is_complete && Clock::now() > looked_at_ + look_after_ && files_->may_look(true)) {
        const auto changed = look_in_passing();
        if (!changed) return {};
        look_after_ = *changed ? kLookSoon : std::min(2 * look_after_, kLookAgain);
        if (*changed) return space_->unwind(pid_, registers, stack);
    }
    return result;
}

NativeUnwinder::NativeUnwinder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NativeUnwinder::NativeUnwinder(NativeUnwinder&&) noexcept = default;
NativeUnwinder& NativeUnwinder::operator=(NativeUnwinder&&) noexcept = default;
NativeUnwinder::~NativeUnwinder() = default;

Result<NativeUnwinder> NativeUnwinder::open(pid_t pid, std::shared_ptr<NativeFiles> files) {
    auto impl = std::make_unique<Impl>(pid, std::move(files));
    if (auto mapped = impl->map_code(); !mapped) return std::move(mapped).error();
    return NativeUnwinder(std::move(impl));
}

NativeStack NativeUnwinder::unwind(Registers registers, std::span<const char> stack) {
    return impl_->unwind(registers, stack);
}

uint64_t NativeUnwinder::changes() const {
    return impl_->changes();
}

uint64_t NativeUnwinder::stack_pointer(Registers registers) {
    return registers.size() > kStackPointer ? registers[kStackPointer] : 0;
}

} // namespace speedbump::stacks
