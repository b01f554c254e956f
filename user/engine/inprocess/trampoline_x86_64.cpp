// SPDX-License-Identifier: MIT
#include "engine/inprocess/trampoline.h"

#include <cstring>
#include <initializer_list>

#include "elf/moved_code.h"
#include "sb_common.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kPage = 4096;
constexpr unsigned kCall = 0xe8, kJump = 0xe9;
constexpr size_t kHookOffset = 64; // after the identity
constexpr size_t kSitesOffset = 2048;
// Of one: the trampoline, and behind it its HookSite.
constexpr size_t kSiteSize = 192;
constexpr size_t kHookSiteOffset = kSiteSize - sizeof(HookSite);

uint64_t in_pages(uint64_t size) {
    return (size + kPage - 1) & ~(kPage - 1);
}

// Instructions one after the other, from an address on.
class Emitter {
  public:
    explicit Emitter(uint64_t address) : address_(address) {}

    void bytes(std::initializer_list<unsigned> values) {
        for (const unsigned value : values) text_.push_back(static_cast<char>(value));
    }
    void text(std::string_view more) { text_ += more; }
    // The last four bytes of an instruction, which count from its end.
    void distance_to(uint64_t target) {
        const auto distance = static_cast<int64_t>(target - (here() + 4));
        const auto narrow = static_cast<int32_t>(distance);
        is_in_reach_ &= narrow == distance;
        char raw[4];
        std::memcpy(raw, &narrow, sizeof raw);
        text_.append(raw, sizeof raw);
    }
    // A jump of one byte to a place that follows.
    size_t short_jump() {
        text_.push_back(0);
        return text_.size();
    }
    void lands_here(size_t jump) { text_[jump - 1] = static_cast<char>(text_.size() - jump); }
    uint64_t here() const { return address_ + text_.size(); }
    bool is_in_reach() const { return is_in_reach_; }
    std::string& take() { return text_; }

  private:
    uint64_t address_;
    std::string text_;
    bool is_in_reach_ = true;
};

// All that the hook may change is kept: the registers that a callee need not, the flags, and what
// lies below the stack pointer. Not the vector registers, which it does not use.
void emit_call(Emitter& code, uint64_t settings, uint64_t hook_site, uint64_t hook) {
    code.bytes({0x48, 0x8d, 0x64, 0x24, 0x80}); // lea -128(%rsp),%rsp
    code.bytes({0x51});                         // push %rcx
    code.bytes({0x8b, 0x0d});                   // mov armed(%rip),%ecx
    code.distance_to(settings + offsetof(HookSettings, armed));
    code.bytes({0x67, 0xe3}); // jecxz out
    const size_t to_end = code.short_jump();
    code.bytes({0x50});                                           // push %rax
    code.bytes({0x9f});                                           // lahf
    code.bytes({0x0f, 0x90, 0xc0});                               // seto %al
    code.bytes({0x50, 0x52, 0x56, 0x57});                         // push %rax, %rdx, %rsi, %rdi
    code.bytes({0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41, 0x53}); // push %r8 to %r11
    code.bytes({0x48, 0x8d, 0x3d});                               // lea site(%rip),%rdi
    code.distance_to(hook_site);
    code.bytes({0xe8}); // call
    code.distance_to(hook);
    code.bytes({0x41, 0x5b, 0x41, 0x5a, 0x41, 0x59, 0x41, 0x58}); // pop %r11 to %r8
    code.bytes({0x5f, 0x5e, 0x5a, 0x58});                         // pop %rdi, %rsi, %rdx, %rax
    code.bytes({0x04, 0x7f}); // add $0x7f,%al: the overflow flag
    code.bytes({0x9e});       // sahf: the others
    code.bytes({0x58});       // pop %rax
    code.lands_here(to_end);
    code.bytes({0x59});                                           // pop %rcx
    code.bytes({0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00}); // lea 128(%rsp),%rsp
}

} // namespace

Layout::Layout(uint64_t address, size_t site_count) : code(address) {
    settings = code + in_pages(kSitesOffset + site_count * kSiteSize);
    process = settings + in_pages(settings_bytes());
    counts = process + kPage;
    end = counts + in_pages(counts_bytes(site_count));
}

uint64_t Layout::trampoline(size_t site) const {
    return code + kSitesOffset + site * kSiteSize;
}

uint64_t Layout::counts_of(size_t site) const {
    return counts + site * kCountsPerSite * sizeof(HookCounts);
}

uint64_t Layout::target(uint32_t number) const {
    return settings + sizeof(HookSettings) + number * sizeof(HookTarget);
}

uint64_t settings_bytes() {
    return sizeof(HookSettings) + SB_MAX_TARGETS * sizeof(HookTarget);
}

uint64_t counts_bytes(size_t site_count) {
    return site_count * kCountsPerSite * sizeof(HookCounts);
}

std::string region_head(const Identity& identity) {
    const HookCode hook = hook_code();
    std::string head(kSitesOffset, '\xcc');
    if (hook.size > kSitesOffset - kHookOffset) return {};
    std::memcpy(head.data(), identity.data(), identity.size());
    std::memcpy(head.data() + kHookOffset, hook.data, hook.size);
    return head;
}

Result<Trampoline> make_trampoline(const Layout& layout, size_t number, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range) {
    const uint64_t address = layout.trampoline(number);
    Emitter code(address);
    emit_call(code, layout.settings, address + kHookSiteOffset,
              layout.code + kHookOffset + hook_code().entry);
    Trampoline made;
    made.copy = code.here();
    const auto moved = elf::move_range(range, site, made.copy);
    if (!moved)
        return make_error(ErrorKind::kUnsupported,
                          "what it refers to is too far from memory that "
                          "is free");
    code.text({reinterpret_cast<const char*>(moved->bytes.data()), moved->bytes.size()});
    made.places = moved->places;
    Emitter jump(site);
    jump.bytes({range[0] == kCall ? kCall : kJump});
    jump.distance_to(address);
    if (!code.is_in_reach() || !jump.is_in_reach())
        return make_error(ErrorKind::kUnsupported, "there is no free memory within reach of it");
    std::memcpy(made.jump.data(), jump.take().data(), made.jump.size());
    made.bytes = code.take();
    if (made.bytes.size() > kHookSiteOffset)
        return make_error(ErrorKind::kUnsupported, "its instructions are too long");
    made.bytes.resize(kHookSiteOffset, '\xcc');
    const HookSite hook_site{layout.settings, layout.target(target), layout.process,
                             layout.counts_of(number)};
    made.bytes.append(reinterpret_cast<const char*>(&hook_site), sizeof hook_site);
    return made;
}

} // namespace speedbump::engine::inprocess
