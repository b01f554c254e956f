// SPDX-License-Identifier: MIT
#include "engine/inprocess/trampoline.h"

#include <cstring>
#include <initializer_list>

#include "abi.h"
#include "elf/moved_code.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kPage = 4096, kLine = 64;
constexpr unsigned kCall = 0xe8, kJump = 0xe9;
constexpr size_t kRegionOffset = sizeof(Identity);
constexpr size_t kWayOffset = 128, kFilteredWayOffset = 192;
constexpr size_t kHookOffset = kRegionOffset + kRegionToHook;
static_assert(kRegionOffset + sizeof(HookRegion) <= kWayOffset);
static_assert(sizeof(sb_turn) == sizeof(HookTarget)); // HookRegion::to_turn
constexpr size_t kTrampolinesOffset = 8192;
// Of one; most take half of it, a line of the cache.
constexpr size_t kTrampolineSize = 128;

uint64_t in_pages(uint64_t size) {
    return (size + kPage - 1) & ~(kPage - 1);
}

uint64_t in_lines(uint64_t size) {
    return (size + kLine - 1) & ~(kLine - 1);
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

// A call, and nothing left of where it has returned to, which would look as if somebody were to
// come back there.
void emit_call(Emitter& code, uint64_t function) {
    code.bytes({0xe8}); // call
    code.distance_to(function);
    code.bytes({0x48, 0xc7, 0x44, 0x24, 0xf8, 0, 0, 0, 0}); // movq $0,-8(%rsp)
}

// What each site has of its own, as short as can be: a call of a way to the hook with its HookSite.
void emit_entry(Emitter& code, const Layout& layout, uint64_t hook_site, uint64_t way) {
    code.bytes({0x48, 0x8d, 0x64, 0x24, 0x80}); // lea -128(%rsp),%rsp
    code.bytes({0x51});                         // push %rcx
    code.bytes({0x8b, 0x0d});                   // mov armed(%rip),%ecx
    code.distance_to(layout.settings + offsetof(HookSettings, armed));
    code.bytes({0x67, 0xe3}); // jecxz out
    const size_t to_end = code.short_jump();
    code.bytes({0x48, 0x8d, 0x0d}); // lea site(%rip),%rcx
    code.distance_to(hook_site);
    emit_call(code, way);
    code.lands_here(to_end);
    code.bytes({0x59});                                           // pop %rcx
    code.bytes({0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00}); // lea 128(%rsp),%rsp
}

// The way from there to the hook, which all sites share. All that the hook may change is kept: the
// registers that a callee need not, the flags, and what lies below the stack pointer. Not the
// vector registers, which it does not use.
void emit_way(Emitter& code, uint64_t hook, bool is_filtered) {
    const HookCode functions = hook_code();
    code.bytes({0x50});                                           // push %rax
    code.bytes({0x9f});                                           // lahf
    code.bytes({0x0f, 0x90, 0xc0});                               // seto %al
    code.bytes({0x50, 0x52, 0x56, 0x57});                         // push %rax, %rdx, %rsi, %rdi
    code.bytes({0x41, 0x50, 0x41, 0x51, 0x41, 0x52, 0x41, 0x53}); // push %r8 to %r11
    code.bytes({0x48, 0x89, 0xcf});                               // mov %rcx,%rdi
    size_t to_restore = 0;
    if (is_filtered) {
        emit_call(code, hook + functions.filter);
        code.bytes({0x84, 0xc0, 0x74}); // test %al,%al; jz
        to_restore = code.short_jump();
        // The HookSite again, which is on no stack: from the instruction before the call to here.
        code.bytes({0x48, 0x8b, 0x4c, 0x24, 9 * 8}); // mov 72(%rsp),%rcx
        code.bytes({0x48, 0x63, 0x79, 0xf7});        // movslq -9(%rcx),%rdi
        code.bytes({0x48, 0x8d, 0x7c, 0x39, 0xfb});  // lea -5(%rcx,%rdi),%rdi
    }
    emit_call(code, hook + functions.entry);
    if (is_filtered) code.lands_here(to_restore);
    code.bytes({0x41, 0x5b, 0x41, 0x5a, 0x41, 0x59, 0x41, 0x58}); // pop %r11 to %r8
    code.bytes({0x5f, 0x5e, 0x5a, 0x58});                         // pop %rdi, %rsi, %rdx, %rax
    code.bytes({0x04, 0x7f}); // add $0x7f,%al: the overflow flag
    code.bytes({0x9e});       // sahf: the others
    code.bytes({0x58, 0xc3}); // pop %rax; ret
}

uint64_t way_of(const Layout& layout, bool is_filtered) {
    return layout.code + (is_filtered ? kFilteredWayOffset : kWayOffset);
}

} // namespace

Layout::Layout(uint64_t address, size_t site_count, const Extent& of, const CallerTables& callers_)
    : code(address), extent(of), tables(callers_) {
    sites = trampoline(site_count);
    callers = hook_site(site_count);
    settings = code + in_pages(callers_of(tables.count) - code);
    process = settings + in_pages(settings_bytes(extent));
    counts = process + kPage;
    stripe = in_lines(site_count * sizeof(HookCounts));
    common = counts + in_pages(kStripes * 2 * stripe);
    end = common + in_pages(common_bytes(extent));
}

uint64_t Layout::trampoline(size_t site) const {
    return code + kTrampolinesOffset + site * kTrampolineSize;
}

uint64_t Layout::hook_site(size_t site) const {
    return sites + site * sizeof(HookSite);
}

uint64_t Layout::callers_of(size_t table) const {
    return callers + table * (sizeof(HookCallers) + 2 * tables.capacity * sizeof(HookRange));
}

uint64_t Layout::counts_of(size_t site, uint64_t number) const {
    return counts + number * stripe + site * sizeof(HookCounts);
}

uint64_t Layout::target(uint32_t number) const {
    return settings + sizeof(HookSettings) + number * sizeof(HookTarget);
}

uint64_t Layout::turn(uint32_t target) const {
    return common + target * sizeof(sb_turn);
}

uint64_t threads_offset() {
    return sizeof(HookSettings) + SB_MAX_TARGETS * sizeof(HookTarget);
}

uint64_t schedule_offset() {
    return threads_offset() + kMaxThreads * sizeof(HookThread);
}

uint64_t settings_bytes(const Extent& extent) {
    const uint64_t doses = uint64_t{SB_RING_SLICES} * extent.columns * sizeof(uint64_t);
    return schedule_offset() + (extent.columns != 0 ? sizeof(sb_schedule) + doses : 0);
}

uint64_t slices_offset() {
    return SB_MAX_TARGETS * sizeof(sb_turn);
}

uint64_t common_bytes(const Extent& extent) {
    const uint64_t ring = uint64_t{SB_RING_SLICES} * extent.columns * sizeof(sb_slice_counts);
    return slices_offset() + extent.rings * ring;
}

std::string region_head(const Layout& layout, const Identity& identity,
                        const ClockFunction& clock) {
    const HookCode hook = hook_code();
    std::string head(kTrampolinesOffset, '\xcc');
    if (hook.size > kTrampolinesOffset - kHookOffset) return {};
    const Extent& extent = layout.extent;
    const HookRegion region{layout.settings,
                            layout.process,
                            extent.columns != 0 ? layout.settings + schedule_offset() : 0,
                            layout.common + slices_offset(),
                            extent.columns,
                            extent.rings - 1,
                            clock,
                            layout.settings + threads_offset(),
                            layout.stripe,
                            layout.turn(0) - layout.target(0)};
    std::memcpy(head.data(), identity.data(), identity.size());
    std::memcpy(head.data() + kRegionOffset, &region, sizeof region);
    for (const bool is_filtered : {false, true}) {
        Emitter way(way_of(layout, is_filtered));
        emit_way(way, layout.code + kHookOffset, is_filtered);
        const std::string& bytes = way.take();
        std::memcpy(head.data() + (way_of(layout, is_filtered) - layout.code), bytes.data(),
                    bytes.size());
    }
    std::memcpy(head.data() + kHookOffset, hook.data, hook.size);
    return head;
}

Result<Trampoline> make_trampoline(const Layout& layout, size_t number, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range,
                                   const Filter& filter) {
    const uint64_t address = layout.trampoline(number);
    Emitter code(address);
    emit_entry(code, layout, layout.hook_site(number), way_of(layout, filter.is_asked));
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
    if (made.bytes.size() > kTrampolineSize)
        return make_error(ErrorKind::kUnsupported, "its instructions are too long");
    made.bytes.resize(kTrampolineSize, '\xcc');
    // A call that leads here has lowered the stack pointer itself.
    const uint64_t distance = filter.return_distance + (range[0] == kCall ? sizeof(uint64_t) : 0);
    made.hook_site = {layout.target(target), layout.counts_of(number, 0),
                      filter.callers ? layout.callers_of(*filter.callers) : 0, distance};
    return made;
}

} // namespace speedbump::engine::inprocess
