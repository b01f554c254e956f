// SPDX-License-Identifier: MIT
#include "stacks/address_space.h"

#include <elfutils/libdwfl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "stacks/leaf.h"
#include "stacks/native_registers.h"
#include "util/proc.h"

namespace speedbump::stacks {
namespace {

constexpr size_t kMaxNativeFrames = 4096;
constexpr size_t kMaxKnown = 1 << 16; // addresses that something is kept of
// Of places in no file.
const NativeFunction kNowhere;

int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                  GElf_Word, char**) {
    return -1; // .eh_frame is in the file itself
}

int no_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, char**, Elf**) {
    return -1; // all are reported with theirs
}

const Dwfl_Callbacks kDwflCallbacks = {no_file, no_debug_file, dwfl_offline_section_address,
                                       nullptr};

// Not by the end of the line: a file may have any name.
VdsoPlace vdso_in(std::string_view maps) {
    constexpr size_t kFieldsBeforeName = 5;
    while (!maps.empty()) {
        const std::string_view line = maps.substr(0, maps.find('\n'));
        maps.remove_prefix(std::min(line.size() + 1, maps.size()));
        size_t at = 0;
        for (size_t i = 0; i < kFieldsBeforeName && at != std::string_view::npos; ++i)
            at = line.find_first_not_of(' ', line.find(' ', at));
        if (at == std::string_view::npos || line.substr(at) != kVdso) continue;
        const std::string range(line.substr(0, line.find(' ')));
        char* dash = nullptr;
        const uint64_t start = std::strtoull(range.c_str(), &dash, 16);
        return {start, std::strtoull(dash + 1, nullptr, 16)};
    }
    return {};
}

} // namespace

VdsoPlace find_vdso(pid_t pid) {
    return vdso_in(read_proc(fmt::format("/proc/{}/maps", pid)));
}

Result<MappedCode> read_code(pid_t pid) {
    const std::string maps = read_proc(fmt::format("/proc/{}/maps", pid));
    MappedCode code;
    if (!maps.empty()) {
        code.files = process::parse_maps(maps);
    } else {
        auto read = process::read_maps(pid); // it says what is wrong
        if (!read) return std::move(read).error();
        code.files = std::move(*read);
    }
    std::erase_if(code.files, [](const process::Mapping& one) { return !one.executable; });
    code.vdso = vdso_in(maps);
    code.key =
        fmt::format("{}\n{:x}-{:x}\n", process::root_of(pid), code.vdso.start, code.vdso.end);
    for (const process::Mapping& one : code.files)
        code.key += fmt::format("{:x}-{:x} {:x} {:x} {:x} {}\n", one.start, one.end,
                                one.file_offset, one.device, one.inode, one.path);
    return code;
}

void AddressSpace::DwflDeleter::operator()(Dwfl* dwfl) const {
    dwfl_end(dwfl);
}

AddressSpace::~AddressSpace() = default;

Result<std::shared_ptr<AddressSpace>> AddressSpace::open(pid_t pid, const MappedCode& code,
                                                         NativeFiles& files) {
    std::shared_ptr<AddressSpace> space(new AddressSpace());
    for (const process::Mapping& one : code.files)
        space->ranges_.push_back({one.start, one.end, one.file_offset,
                                  space->files_.insert(files.file_of(pid, one)).first->get()});
    if (code.vdso.start != 0) {
        const uint64_t size = code.vdso.end - code.vdso.start;
        NativeFile* file = space->files_.insert(files.vdso(size)).first->get();
        space->ranges_.push_back({code.vdso.start, code.vdso.end, 0, file});
    }
    std::sort(space->ranges_.begin(), space->ranges_.end(),
              [](const Range& a, const Range& b) { return a.start < b.start; });
    if (auto reported = space->report_modules(pid); !reported) return std::move(reported).error();
    return space;
}

bool AddressSpace::is_unchanged() const {
    return std::all_of(files_.begin(), files_.end(),
                       [](const auto& file) { return file->is_as_opened(); });
}

Result<void> AddressSpace::report_modules(pid_t pid) {
    dwfl_.reset(dwfl_begin(&kDwflCallbacks));
    if (!dwfl_) return make_error(ErrorKind::kIo, std::string("libdwfl: ") + dwfl_errmsg(-1));
    dwfl_report_begin(dwfl_.get());
    std::set<std::pair<const NativeFile*, uint64_t>> reported;
    for (const Range& range : ranges_) {
        const auto bias = range.file->bias_of(range.start, range.file_offset);
        if (bias && reported.insert({range.file, *bias}).second)
            report_module(*range.file, range.file->path(), *bias);
    }
    dwfl_report_end(dwfl_.get(), nullptr, nullptr);
    static const Dwfl_Thread_Callbacks kThreads = {next_thread,   get_thread, read_memory,
                                                   set_registers, nullptr,    nullptr};
    if (!dwfl_attach_state(dwfl_.get(), nullptr, pid, &kThreads, this))
        return make_error(ErrorKind::kIo,
                          "process " + std::to_string(pid) + ": libdwfl: " + dwfl_errmsg(-1));
    return {};
}

void AddressSpace::report_module(NativeFile& file, const std::string& path, uint64_t bias) {
    Fd fd = file.unwind_tables();
    if (fd.valid() &&
        dwfl_report_elf(dwfl_.get(), path.c_str(), path.c_str(), fd.get(), bias, true) != nullptr)
        (void)fd.release(); // libdwfl closes it
}

const AddressSpace::Range* AddressSpace::range_of(uint64_t address) const {
    const auto next =
        std::upper_bound(ranges_.begin(), ranges_.end(), address,
                         [](uint64_t at, const Range& range) { return at < range.start; });
    return next != ranges_.begin() && address < std::prev(next)->end ? &*std::prev(next) : nullptr;
}

const NativeFunction* AddressSpace::function_at(uint64_t address) {
    auto [entry, is_new] = by_address_.try_emplace(address, nullptr);
    if (!is_new) return entry->second;
    const Range* range = range_of(address);
    if (range == nullptr) return entry->second = &kNowhere;
    return entry->second = range->file->function_at(range->offset_of(address), pid_);
}

std::optional<uint32_t> AddressSpace::code_at(uint64_t address) const {
    const Range* range = range_of(address);
    uint32_t word = 0;
    if (range == nullptr || !range->file->fd().valid()) return std::nullopt;
    const auto offset = static_cast<off_t>(range->offset_of(address));
    if (pread(range->file->fd().get(), &word, sizeof(word), offset) != sizeof(word))
        return std::nullopt;
    return word;
}

bool AddressSpace::has_table(uint64_t pc) {
    auto [entry, is_new] = has_table_.try_emplace(pc, false);
    if (!is_new) return entry->second;
    Dwfl_Module* module = dwfl_addrmodule(dwfl_.get(), pc);
    Dwarf_Addr bias = 0;
    Dwarf_CFI* table = module != nullptr ? dwfl_module_eh_cfi(module, &bias) : nullptr;
    Dwarf_Frame* frame = nullptr;
    entry->second = table != nullptr && dwarf_cfi_addrframe(table, pc - bias, &frame) == 0;
    std::free(frame);
    return entry->second;
}

// Where calls leave the return address in a register, code without a table is left by hand: libdwfl
// keeps no register but the instruction pointer then. False: the caller is not known.
bool AddressSpace::leave_leaf() {
    const uint64_t pc = registers_[kInstructionPointer];
    if (has_table(pc)) return true;
    auto [is_leaf, is_new] = is_in_leaf_.try_emplace(pc, false);
    if (is_new) is_leaf->second = is_in_leaf(pc, [this](uint64_t at) { return code_at(at); });
    result_.frames.push_back({function_at(pc), registers_[kStackPointer]});
    constexpr uint64_t kCall = 4; // bytes: its table is asked where it calls
    begin_at_ = (registers_[*kLinkRegister] & ~kSignature) - kCall;
    return is_leaf->second;
}

pid_t AddressSpace::next_thread(Dwfl*, void* self, void** thread) {
    if (*thread != nullptr) return 0;
    *thread = self;
    return 1;
}

bool AddressSpace::get_thread(Dwfl*, pid_t, void* self, void** thread) {
    *thread = self;
    return true;
}

bool AddressSpace::read_memory(Dwfl*, uint64_t address, uint64_t* value, void* self) {
    const auto& space = *static_cast<AddressSpace*>(self);
    const uint64_t start = space.registers_[kStackPointer];
    if (address < start || address - start + sizeof(*value) > space.stack_.size()) return false;
    std::memcpy(value, space.stack_.data() + (address - start), sizeof(*value));
    return true;
}

bool AddressSpace::set_registers(Dwfl_Thread* thread, void* self) {
    const auto& space = *static_cast<AddressSpace*>(self);
    const std::span<const size_t> order = dwarf_registers();
    std::array<Dwarf_Word, SB_REGISTERS> words;
    for (size_t i = 0; i < order.size(); ++i) words[i] = space.registers_[order[i]];
    dwfl_thread_state_register_pc(thread, space.begin_at_);
    constexpr int kMask = -2; // as libdwfl names it to itself (linux-core-attach.c)
    const Dwarf_Word signature = kSignature;
    if (signature != 0) dwfl_thread_state_registers(thread, kMask, 1, &signature);
    return dwfl_thread_state_registers(thread, 0, static_cast<unsigned>(order.size()),
                                       words.data());
}

int AddressSpace::add_frame(Dwfl_Frame* frame, void* self) {
    auto& space = *static_cast<AddressSpace*>(self);
    Dwarf_Addr pc = 0;
    bool is_exact = false; // else the address that the call returns to
    if (!dwfl_frame_pc(frame, &pc, &is_exact)) return DWARF_CB_ABORT;
    Dwarf_Word low = 0;
    if (dwfl_frame_reg(frame, kDwarfStackPointer, &low) != 0) return DWARF_CB_ABORT;
    if (!is_exact) --pc;
    space.result_.frames.push_back({space.function_at(pc), low});
    // libdwfl would guess: by frame pointers, and with a stack pointer that is not the caller's.
    if (kLinkRegister && !space.has_table(pc)) return DWARF_CB_ABORT;
    return space.result_.frames.size() < kMaxNativeFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

void AddressSpace::follow() {
    result_ = {};
    begin_at_ = registers_[kInstructionPointer];
    if (kLinkRegister && !leave_leaf()) return;
    result_.is_complete = dwfl_getthread_frames(dwfl_.get(), 1, add_frame, this) == 0;
}

// A program may run code anywhere.
void AddressSpace::forget_much() {
    if (by_address_.size() > kMaxKnown) by_address_.clear();
    if (has_table_.size() > kMaxKnown) has_table_.clear();
    if (is_in_leaf_.size() > kMaxKnown) is_in_leaf_.clear();
}

NativeStack AddressSpace::unwind(pid_t pid, Registers registers, std::span<const char> stack) {
    if (registers.size() < SB_REGISTERS) return {};
    forget_much();
    pid_ = pid;
    registers_ = registers;
    stack_ = stack;
    follow();
    const NativeFunction* innermost =
        result_.frames.empty() ? nullptr : result_.frames.front().function;
    if (innermost == nullptr || innermost->runs_python ||
        (innermost->in_interpreter && innermost->name.empty()))
        result_.loop_pc = registers_[kInstructionPointer];
    return std::move(result_);
}

} // namespace speedbump::stacks
