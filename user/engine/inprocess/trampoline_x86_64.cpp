// SPDX-License-Identifier: MIT
#include "engine/inprocess/trampoline.h"

#include <cstring>
#include <initializer_list>

#include "abi.h"
#include "elf/moved_code.h"
#include "util/page.h"

namespace speedbump::engine::inprocess {
namespace {

constexpr uint64_t kLine = 64;
constexpr unsigned kCall = 0xe8, kJump = 0xe9;
constexpr size_t kRegionOffset = sizeof(Identity);
constexpr size_t kHookOffset = kRegionOffset + kRegionToHook;
static_assert(sizeof(HookRegion) <= kRegionToHook && kHookOffset % kLine == 0);
static_assert(sizeof(sb_turn) == sizeof(HookTarget)); // HookRegion::to_turn
constexpr size_t kTrampolinesOffset = 8192;
// Of a slot: a line of the cache.
constexpr size_t kSlotSize = kLine;
// What lies before the moved instructions, and where in it the way to the hook returns to.
constexpr size_t kEntrySize = 38, kWayReturns = 20;

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

// What each site has of its own, as short as can be: the state of its target, and a call of a way
// that all share, which knows by the return address whose it is.
void emit_entry(Emitter& code, uint64_t state, uint64_t way) {
    code.bytes({0x48, 0x8d, 0x64, 0x24, 0x80}); // lea -128(%rsp),%rsp
    code.bytes({0x51});                         // push %rcx
    code.bytes({0x8b, 0x0d});                   // mov state(%rip),%ecx
    code.distance_to(state);
    code.bytes({0x67, 0xe3}); // jecxz out
    const size_t to_end = code.short_jump();
    code.bytes({0xe8}); // call way
    code.distance_to(way);
    // And nothing left of where it returns to, which would look as if somebody were to come back.
    code.bytes({0x48, 0xc7, 0x44, 0x24, 0xf8, 0, 0, 0, 0}); // movq $0,-8(%rsp)
    code.lands_here(to_end);
    code.bytes({0x59});                                           // pop %rcx
    code.bytes({0x48, 0x8d, 0xa4, 0x24, 0x80, 0x00, 0x00, 0x00}); // lea 128(%rsp),%rsp
}

size_t in_slots(size_t bytes) {
    return (bytes + kSlotSize - 1) / kSlotSize;
}

} // namespace

Layout::Layout(uint64_t address, size_t slots, const Extent& of, const CallerTables& callers_)
    : code(address), extent(of), tables(callers_) {
    sites = trampoline(slots);
    callers = hook_site(slots);
    settings = code + in_pages(callers_of(tables.count) - code);
    process = settings + in_pages(settings_bytes(extent));
    counts = process + kPage;
    hits_stripe = in_lines(slots * sizeof(uint64_t));
    delays_stripe = in_lines(slots * sizeof(HookDelays));
    delays = counts + 2 * kStripes * hits_stripe;
    common = counts + in_pages(delays + 2 * kStripes * delays_stripe - counts);
    end = common + in_pages(common_bytes(extent));
}

uint64_t Layout::trampoline(size_t slot) const {
    return code + kTrampolinesOffset + slot * kSlotSize;
}

uint64_t Layout::hook_site(size_t slot) const {
    return sites + slot * sizeof(HookSite);
}

uint64_t Layout::callers_of(size_t table) const {
    return callers + table * (sizeof(HookCallers) + 2 * tables.capacity * sizeof(HookRange));
}

uint64_t Layout::hits_of(size_t slot, uint64_t stripe) const {
    return counts + stripe * hits_stripe + slot * sizeof(uint64_t);
}

uint64_t Layout::delays_of(size_t slot, uint64_t stripe) const {
    return delays + stripe * delays_stripe + slot * sizeof(HookDelays);
}

uint64_t Layout::target(uint32_t number) const {
    return settings + sizeof(HookSettings) + number * sizeof(HookTarget);
}

uint64_t Layout::state(uint32_t target) const {
    return settings + states_offset() + target * sizeof(HookState);
}

uint64_t Layout::turn(uint32_t target) const {
    return common + target * sizeof(sb_turn);
}

uint64_t states_offset() {
    return sizeof(HookSettings) + SB_MAX_TARGETS * sizeof(HookTarget);
}

uint64_t threads_offset() {
    return states_offset() + SB_MAX_TARGETS * sizeof(HookState);
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
    const uint64_t returns_to = layout.trampoline(0) + kWayReturns;
    const HookRegion region{layout.settings,
                            layout.process,
                            layout.hits_of(0, 0) - returns_to / (kSlotSize / sizeof(uint64_t)),
                            layout.hits_stripe,
                            layout.sites - returns_to / (kSlotSize / sizeof(HookSite)),
                            extent.columns != 0 ? layout.settings + schedule_offset() : 0,
                            layout.common + slices_offset(),
                            extent.columns,
                            extent.rings - 1,
                            clock,
                            layout.settings + threads_offset(),
                            layout.hits_of(0, 0),
                            layout.delays,
                            layout.delays_stripe,
                            layout.turn(0) - layout.target(0)};
    std::memcpy(head.data(), identity.data(), identity.size());
    std::memcpy(head.data() + kRegionOffset, &region, sizeof region);
    std::memcpy(head.data() + kHookOffset, hook.data, hook.size);
    return head;
}

size_t slots_of(uint64_t site, std::basic_string_view<unsigned char> range) {
    const auto moved = elf::move_range(range, site, site); // as long wherever
    return in_slots(kEntrySize + (moved ? moved->bytes.size() : 0));
}

Result<Trampoline> make_trampoline(const Layout& layout, size_t slot, uint32_t target,
                                   uint64_t site, std::basic_string_view<unsigned char> range,
                                   const Filter& filter) {
    const uint64_t address = layout.trampoline(slot);
    Emitter code(address);
    const HookCode hook = hook_code();
    emit_entry(code, layout.state(target),
               layout.code + kHookOffset + (filter.is_asked ? hook.filtered_way : hook.way));
    Trampoline made;
    made.slot = slot;
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
    made.bytes.resize(in_slots(made.bytes.size()) * kSlotSize, '\xcc');
    // A call that leads here has lowered the stack pointer itself.
    const uint64_t distance = filter.return_distance + (range[0] == kCall ? sizeof(uint64_t) : 0);
    made.hook_site = {layout.target(target), slot,
                      filter.callers ? layout.callers_of(*filter.callers) : 0, distance};
    return made;
}

} // namespace speedbump::engine::inprocess
