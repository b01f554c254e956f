// SPDX-License-Identifier: MIT
#include "stacks/native_stack.h"

#include <elfutils/libdwfl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_map>

#include "process/maps.h"
#include "process/remote_elf.h"
#include "stacks/leaf.h"
#include "stacks/native_registers.h"
#include "util/clock.h"

namespace speedbump::stacks {
namespace {

using std::chrono::nanoseconds;

constexpr size_t kMaxNativeFrames = 4096;
// For libraries mapped meanwhile: the longer nothing has changed, the more seldom.
constexpr Clock::duration kLookSoon = std::chrono::milliseconds(10);
constexpr Clock::duration kLookAgain = std::chrono::seconds(1);

// A piece of a file as it is mapped.
struct Range {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t file_offset = 0;
    NativeFile* file = nullptr;

    uint64_t offset_of(uint64_t address) const { return address - start + file_offset; }
};

struct DwflDeleter {
    void operator()(Dwfl* dwfl) const { dwfl_end(dwfl); }
};

int no_debug_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, const char*, const char*,
                  GElf_Word, char**) {
    return -1; // .eh_frame is in the file itself
}

int no_file(Dwfl_Module*, void**, const char*, Dwarf_Addr, char**, Elf**) {
    return -1; // all are reported with theirs
}

const Dwfl_Callbacks kDwflCallbacks = {no_file, no_debug_file, dwfl_offline_section_address,
                                       nullptr};

} // namespace

class NativeUnwinder::Impl {
  public:
    Impl(pid_t pid, std::shared_ptr<NativeFiles> files) : pid_(pid), files_(std::move(files)) {}

    Result<bool> map_files();
    NativeStack unwind(Registers registers, std::span<const char> stack);

  private:
    static pid_t next_thread(Dwfl*, void* self, void** thread);
    static bool get_thread(Dwfl*, pid_t, void* self, void** thread);
    static bool read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* value, void* self);
    static bool set_registers(Dwfl_Thread* thread, void* self);
    static int add_frame(Dwfl_Frame* frame, void* self);

    void follow();
    bool leave_leaf();
    bool has_table(uint64_t pc);
    std::optional<uint32_t> code_at(uint64_t address) const;
    const Range* range_of(uint64_t address) const;
    Result<void> report_modules(const std::vector<process::Mapping>& mappings);
    void add_vdso();
    const NativeFunction* function_at(uint64_t address);
    Result<bool> look_in_passing();
    NativeFile* keep(const std::shared_ptr<NativeFile>& file) {
        return used_.insert(file).first->get();
    }

    pid_t pid_;
    std::unique_ptr<Dwfl, DwflDeleter> dwfl_;
    std::vector<process::Mapping> mappings_;
    VdsoPlace vdso_;
    std::shared_ptr<NativeFiles> files_;
    std::set<std::shared_ptr<NativeFile>> used_; // all that ever were mapped
    std::vector<Range> ranges_;                  // executable, by address
    std::unordered_map<uint64_t, const NativeFunction*> by_address_;
    std::unordered_map<uint64_t, bool> has_table_; // of unwinding, by address
    std::unordered_map<uint64_t, bool> is_in_leaf_;
    NativeFunction nowhere_;
    Clock::time_point looked_at_{};
    Clock::duration look_after_ = kLookSoon; // when a stack leads nowhere

    // Of the stack that is unwound.
    Registers registers_;
    uint64_t begin_at_ = 0; // where libdwfl takes over
    std::span<const char> stack_;
    NativeStack result_;
};

Result<void> NativeUnwinder::Impl::report_modules(const std::vector<process::Mapping>& mappings) {
    ranges_.clear();
    by_address_.clear();
    has_table_.clear();
    is_in_leaf_.clear();
    for (const process::Mapping& mapping : mappings)
        if (mapping.executable)
            ranges_.push_back({mapping.start, mapping.end, mapping.file_offset,
                               keep(files_->file_of(pid_, mapping))});
    const auto modules = process::load_modules(pid_);
    if (!modules) return modules.error();
    dwfl_.reset(dwfl_begin(&kDwflCallbacks));
    if (!dwfl_) return make_error(ErrorKind::kIo, std::string("libdwfl: ") + dwfl_errmsg(-1));
    dwfl_report_begin(dwfl_.get());
    for (const process::RemoteModule& module : *modules) {
        const auto range = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& one) {
            return module.contains_code(one.start);
        });
        if (range == ranges_.end() || !range->file->fd().valid()) continue;
        Fd fd = range->file->unwind_tables();
        if (fd.valid() && dwfl_report_elf(dwfl_.get(), module.path().c_str(), module.path().c_str(),
                                          fd.get(), module.bias(), true) != nullptr)
            (void)fd.release(); // libdwfl closes it
    }
    add_vdso();
    dwfl_report_end(dwfl_.get(), nullptr, nullptr);
    static const Dwfl_Thread_Callbacks kThreads = {next_thread,   get_thread, read_memory,
                                                   set_registers, nullptr,    nullptr};
    if (!dwfl_attach_state(dwfl_.get(), nullptr, pid_, &kThreads, this))
        return make_error(ErrorKind::kIo,
                          "process " + std::to_string(pid_) + ": libdwfl: " + dwfl_errmsg(-1));
    return {};
}

void NativeUnwinder::Impl::add_vdso() {
    if (vdso_.start == 0) return;
    NativeFile* file = keep(files_->vdso(vdso_.end - vdso_.start));
    ranges_.push_back({vdso_.start, vdso_.end, 0, file});
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.start < b.start; });
    Fd fd = file->unwind_tables();
    if (fd.valid() &&
        dwfl_report_elf(dwfl_.get(), kVdso, kVdso, fd.get(), vdso_.start, true) != nullptr)
        (void)fd.release();
}

// Looks at what the process maps; cheap when that is what it was. Whether it was not.
Result<bool> NativeUnwinder::Impl::map_files() {
    looked_at_ = Clock::now();
    auto mappings = process::read_maps(pid_);
    if (!mappings) return std::move(mappings).error();
    std::erase_if(*mappings, [](const process::Mapping& one) { return !one.executable; });
    const auto is_same = [](const process::Mapping& a, const process::Mapping& b) {
        return a.start == b.start && a.end == b.end && a.file_offset == b.file_offset &&
               a.device == b.device && a.inode == b.inode;
    };
    if (dwfl_ &&
        std::equal(mappings->begin(), mappings->end(), mappings_.begin(), mappings_.end(), is_same))
        return false;
    mappings_ = std::move(*mappings);
    vdso_ = find_vdso(pid_);
    if (auto reported = report_modules(mappings_); !reported) return std::move(reported).error();
    return true;
}

const Range* NativeUnwinder::Impl::range_of(uint64_t address) const {
    const auto next =
        std::upper_bound(ranges_.begin(), ranges_.end(), address,
                         [](uint64_t at, const Range& range) { return at < range.start; });
    return next != ranges_.begin() && address < std::prev(next)->end ? &*std::prev(next) : nullptr;
}

const NativeFunction* NativeUnwinder::Impl::function_at(uint64_t address) {
    auto [entry, is_new] = by_address_.try_emplace(address, nullptr);
    if (!is_new) return entry->second;
    const Range* range = range_of(address);
    if (range == nullptr) return entry->second = &nowhere_;
    return entry->second = range->file->function_at(range->offset_of(address), pid_);
}

std::optional<uint32_t> NativeUnwinder::Impl::code_at(uint64_t address) const {
    const Range* range = range_of(address);
    uint32_t word = 0;
    if (range == nullptr || !range->file->fd().valid()) return std::nullopt;
    const auto offset = static_cast<off_t>(range->offset_of(address));
    if (pread(range->file->fd().get(), &word, sizeof(word), offset) != sizeof(word))
        return std::nullopt;
    return word;
}

bool NativeUnwinder::Impl::has_table(uint64_t pc) {
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
bool NativeUnwinder::Impl::leave_leaf() {
    const uint64_t pc = registers_[kInstructionPointer];
    if (has_table(pc)) return true;
    auto [is_leaf, is_new] = is_in_leaf_.try_emplace(pc, false);
    if (is_new) is_leaf->second = is_in_leaf(pc, [this](uint64_t at) { return code_at(at); });
    result_.frames.push_back({function_at(pc), registers_[kStackPointer]});
    constexpr uint64_t kCall = 4; // bytes: its table is asked where it calls
    begin_at_ = (registers_[*kLinkRegister] & ~kSignature) - kCall;
    return is_leaf->second;
}

pid_t NativeUnwinder::Impl::next_thread(Dwfl*, void* self, void** thread) {
    if (*thread != nullptr) return 0;
    *thread = self;
    return 1;
}

bool NativeUnwinder::Impl::get_thread(Dwfl*, pid_t, void* self, void** thread) {
    *thread = self;
    return true;
}

bool NativeUnwinder::Impl::read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* value, void* self) {
    const auto& impl = *static_cast<Impl*>(self);
    const uint64_t start = impl.registers_[kStackPointer];
    if (address < start || address - start + sizeof(*value) > impl.stack_.size()) return false;
    std::memcpy(value, impl.stack_.data() + (address - start), sizeof(*value));
    return true;
}

bool NativeUnwinder::Impl::set_registers(Dwfl_Thread* thread, void* self) {
    const auto& impl = *static_cast<Impl*>(self);
    const std::span<const size_t> order = dwarf_registers();
    std::array<Dwarf_Word, SB_REGISTERS> words;
    for (size_t i = 0; i < order.size(); ++i) words[i] = impl.registers_[order[i]];
    dwfl_thread_state_register_pc(thread, impl.begin_at_);
    constexpr int kMask = -2; // as libdwfl names it to itself (linux-core-attach.c)
    const Dwarf_Word signature = kSignature;
    if (signature != 0) dwfl_thread_state_registers(thread, kMask, 1, &signature);
    return dwfl_thread_state_registers(thread, 0, static_cast<unsigned>(order.size()),
                                       words.data());
}

int NativeUnwinder::Impl::add_frame(Dwfl_Frame* frame, void* self) {
    auto& impl = *static_cast<Impl*>(self);
    Dwarf_Addr pc = 0;
    bool is_exact = false; // else the address that the call returns to
    if (!dwfl_frame_pc(frame, &pc, &is_exact)) return DWARF_CB_ABORT;
    Dwarf_Word low = 0;
    if (dwfl_frame_reg(frame, kDwarfStackPointer, &low) != 0) return DWARF_CB_ABORT;
    if (!is_exact) --pc;
    impl.result_.frames.push_back({impl.function_at(pc), low});
    // libdwfl would guess: by frame pointers, and with a stack pointer that is not the caller's.
    if (kLinkRegister && !impl.has_table(pc)) return DWARF_CB_ABORT;
    return impl.result_.frames.size() < kMaxNativeFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

void NativeUnwinder::Impl::follow() {
    result_ = {};
    begin_at_ = registers_[kInstructionPointer];
    if (kLinkRegister && !leave_leaf()) return;
    result_.is_complete = dwfl_getthread_frames(dwfl_.get(), 1, add_frame, this) == 0;
}

// As map_files(); what it took counts for all processes together.
Result<bool> NativeUnwinder::Impl::look_in_passing() {
    const auto before = thread_cpu_time();
    auto looked = map_files();
    files_->looked(thread_cpu_time() - before);
    return looked;
}

NativeStack NativeUnwinder::Impl::unwind(Registers registers, std::span<const char> stack) {
    if (registers.size() < SB_REGISTERS) return {};
    if (Clock::now() > looked_at_ + kLookAgain && files_->may_look() && !look_in_passing())
        return {};
    registers_ = registers;
    stack_ = stack;
    follow();
    if (!result_.is_complete && Clock::now() > looked_at_ + look_after_) {
        const auto changed = map_files();
        if (!changed) return {};
        look_after_ = *changed ? kLookSoon : std::min(2 * look_after_, kLookAgain);
        if (*changed) follow();
    }
    const NativeFunction* innermost =
        result_.frames.empty() ? nullptr : result_.frames.front().function;
    if (innermost == nullptr || innermost->runs_python ||
        (innermost->in_interpreter && innermost->name.empty()))
        result_.loop_pc = registers_[kInstructionPointer];
    return std::move(result_);
}

NativeUnwinder::NativeUnwinder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NativeUnwinder::NativeUnwinder(NativeUnwinder&&) noexcept = default;
NativeUnwinder& NativeUnwinder::operator=(NativeUnwinder&&) noexcept = default;
NativeUnwinder::~NativeUnwinder() = default;

Result<NativeUnwinder> NativeUnwinder::open(pid_t pid, std::shared_ptr<NativeFiles> files) {
    auto impl = std::make_unique<Impl>(pid, std::move(files));
    if (auto mapped = impl->map_files(); !mapped) return std::move(mapped).error();
    return NativeUnwinder(std::move(impl));
}

NativeStack NativeUnwinder::unwind(Registers registers, std::span<const char> stack) {
    return impl_->unwind(registers, stack);
}

uint64_t NativeUnwinder::stack_pointer(Registers registers) {
    return registers.size() > kStackPointer ? registers[kStackPointer] : 0;
}

} // namespace speedbump::stacks
