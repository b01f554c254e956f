// SPDX-License-Identifier: MIT
#include "stacks/native_stack.h"

#include <elfutils/libdwfl.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <optional>
#include <unordered_map>

#include "elf/demangle.h"
#include "elf/image.h"
#include "elf/symbols.h"
#include "process/maps.h"
#include "process/remote_elf.h"
#include "stacks/native_registers.h"
#include "util/clock.h"

namespace speedbump::stacks {
namespace {

constexpr size_t kMaxNativeFrames = 4096;
// For libraries mapped meanwhile: the longer nothing has changed, the more seldom.
constexpr Clock::duration kLookSoon = std::chrono::milliseconds(10);
constexpr Clock::duration kLookAgain = std::chrono::seconds(1);
constexpr uint64_t kMaxTableBytes = uint64_t{1} << 28; // of one table
constexpr const char* kVdso = "[vdso]";

struct File {
    std::string path;
    Fd fd;
    std::shared_ptr<const elf::ElfFile> symbols; // read when first asked for
    bool was_opened = false;
    bool has_loop = false;             // of an interpreter
    NativeFunction* unnamed = nullptr; // for addresses without a symbol
    std::map<const elf::Function*, const NativeFunction*> functions;
};

// A piece of a file as it is mapped.
struct Range {
    uint64_t start = 0;
    uint64_t end = 0;
    uint64_t file_offset = 0;
    File* file = nullptr;
};

struct VdsoPlace {
    uint64_t start = 0;
    uint64_t end = 0;
};

VdsoPlace find_vdso(pid_t pid) {
    std::ifstream maps("/proc/" + std::to_string(pid) + "/maps");
    for (std::string line; std::getline(maps, line);) {
        if (!line.ends_with(kVdso)) continue;
        const size_t dash = line.find('-');
        if (dash == std::string::npos) break;
        return {std::strtoull(line.c_str(), nullptr, 16),
                std::strtoull(line.c_str() + dash + 1, nullptr, 16)};
    }
    return {};
}

// The kernel gives every process the same one; ours serves for all that are of our kind.
Fd copy_own_vdso(uint64_t size) {
    const VdsoPlace own = find_vdso(getpid());
    Fd file(memfd_create("vdso", MFD_CLOEXEC));
    if (!file.valid() || own.end - own.start != size) return {};
    const auto* bytes = reinterpret_cast<const char*>(own.start); // NOLINT: where the kernel put it
    if (write(file.get(), bytes, size) != static_cast<ssize_t>(size)) return {};
    return file;
}

Fd duplicate(const Fd& fd) {
    return Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
}

// What libdwfl reads of a file to unwind, at the same offsets of a file of our own with holes. It
// maps what it reads, and a file that is cut short under a mapping would end this program (SIGBUS).
Fd copy_tables(const Fd& file, const std::string& path) {
    const auto source = elf::make_file_source(duplicate(file), path);
    if (!source) return {};
    const auto image = elf::Image::parse(*source, path, elf::ImageRole::kProgram);
    Elf64_Ehdr header;
    if (!image || !image->source().read(0, &header, sizeof(header))) return {};
    Fd copy(memfd_create("unwind-tables", MFD_CLOEXEC));
    if (!copy.valid() || ftruncate(copy.get(), static_cast<off_t>(image->size())) != 0) return {};
    const auto add = [&](uint64_t offset, uint64_t size) {
        const auto bytes = image->read(offset, size, kMaxTableBytes, "unwind tables");
        return bytes && pwrite(copy.get(), bytes->data(), bytes->size(),
                               static_cast<off_t>(offset)) == static_cast<ssize_t>(bytes->size());
    };
    if (!add(0, sizeof(header)) ||
        !add(header.e_phoff, image->program_headers().size() * sizeof(Elf64_Phdr)) ||
        !add(header.e_shoff, image->sections().size() * sizeof(Elf64_Shdr)))
        return {};
    for (const char* name : {".shstrtab", ".eh_frame_hdr", ".eh_frame", ".debug_frame"}) {
        const Elf64_Shdr* section = image->section(name);
        if (section != nullptr && section->sh_type != SHT_NOBITS &&
            !add(section->sh_offset, section->sh_size))
            return {};
    }
    return copy;
}

// The interpreter's loop, or (since 3.14, with compilers that can) what it hops through.
bool is_loop(const elf::Function& function) {
    return std::any_of(function.names.begin(), function.names.end(), [](std::string_view name) {
        return name == "_PyEval_EvalFrameDefault" || name.starts_with("_TAIL_CALL_");
    });
}

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
    explicit Impl(pid_t pid) : pid_(pid) {}

    Result<bool> map_files();
    NativeStack unwind(Registers registers, std::span<const char> stack);

  private:
    static pid_t next_thread(Dwfl*, void* self, void** thread);
    static bool get_thread(Dwfl*, pid_t, void* self, void** thread);
    static bool read_memory(Dwfl*, Dwarf_Addr address, Dwarf_Word* value, void* self);
    static bool set_registers(Dwfl_Thread* thread, void* self);
    static int add_frame(Dwfl_Frame* frame, void* self);

    void follow();
    Result<void> report_modules(const std::vector<process::Mapping>& mappings);
    void add_vdso();
    File* file_of(const process::Mapping& mapping);
    const NativeFunction* function_at(uint64_t address);
    const NativeFunction* name(File& file, uint64_t file_offset);

    pid_t pid_;
    std::unique_ptr<Dwfl, DwflDeleter> dwfl_;
    std::vector<process::Mapping> mappings_;
    VdsoPlace vdso_;
    std::deque<File> files_; // all that ever were mapped
    std::map<std::pair<uint64_t, uint64_t>, File*> file_by_key_;
    std::vector<Range> ranges_; // executable, by address
    std::unordered_map<uint64_t, const NativeFunction*> by_address_;
    std::deque<NativeFunction> functions_;
    const NativeFunction* nowhere_ = nullptr;
    Clock::time_point looked_at_{};
    Clock::duration look_after_ = kLookSoon; // when a stack leads nowhere

    // Of the stack that is unwound.
    Registers registers_;
    std::span<const char> stack_;
    NativeStack result_;
};

File* NativeUnwinder::Impl::file_of(const process::Mapping& mapping) {
    auto [entry, is_new] = file_by_key_.try_emplace({mapping.device, mapping.inode}, nullptr);
    if (is_new) {
        auto opened = process::open_mapped_file(pid_, mapping);
        files_.push_back({process::path_within(process::root_of(pid_), mapping.path),
                          opened ? std::move(*opened) : Fd(),
                          nullptr,
                          false,
                          false,
                          nullptr,
                          {}});
        entry->second = &files_.back();
    }
    return entry->second;
}

Result<void> NativeUnwinder::Impl::report_modules(const std::vector<process::Mapping>& mappings) {
    ranges_.clear();
    by_address_.clear();
    for (const process::Mapping& mapping : mappings)
        if (mapping.executable)
            ranges_.push_back({mapping.start, mapping.end, mapping.file_offset, file_of(mapping)});
    const auto modules = process::load_modules(pid_);
    if (!modules) return modules.error();
    dwfl_.reset(dwfl_begin(&kDwflCallbacks));
    if (!dwfl_) return make_error(ErrorKind::kIo, std::string("libdwfl: ") + dwfl_errmsg(-1));
    dwfl_report_begin(dwfl_.get());
    for (const process::RemoteModule& module : *modules) {
        const auto range = std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& one) {
            return module.contains_code(one.start);
        });
        if (range == ranges_.end() || !range->file->fd.valid()) continue;
        Fd fd = copy_tables(range->file->fd, range->file->path);
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
    auto [entry, is_new] = file_by_key_.try_emplace({0, 0}, nullptr);
    if (is_new) {
        files_.push_back(
            {kVdso, copy_own_vdso(vdso_.end - vdso_.start), nullptr, false, false, nullptr, {}});
        entry->second = &files_.back();
    }
    File* file = entry->second;
    ranges_.push_back({vdso_.start, vdso_.end, 0, file});
    std::sort(ranges_.begin(), ranges_.end(),
              [](const Range& a, const Range& b) { return a.start < b.start; });
    if (!file->fd.valid()) return;
    Fd fd = duplicate(file->fd);
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

const NativeFunction* NativeUnwinder::Impl::name(File& file, uint64_t file_offset) {
    if (!file.was_opened) {
        file.was_opened = true;
        if (file.fd.valid()) {
            auto opened = elf::ElfFile::open(
                file.fd.get(), file.path,
                {"/proc/" + std::to_string(pid_) + "/root", elf::DebugSearch{}.directories});
            if (opened) {
                file.symbols = std::move(*opened);
                const auto& functions = file.symbols->functions();
                file.has_loop = std::any_of(functions.begin(), functions.end(), is_loop);
            }
        }
    }
    const elf::Function* function =
        file.symbols ? file.symbols->function_at_offset(file_offset) : nullptr;
    if (function == nullptr) {
        if (file.unnamed == nullptr) {
            functions_.push_back({file.path, "", 0, file.has_loop, false});
            file.unnamed = &functions_.back();
        }
        return file.unnamed;
    }
    auto [entry, is_new] = file.functions.try_emplace(function, nullptr);
    if (is_new) {
        const std::string symbol(function->names.front());
        const std::string demangled = elf::demangle(symbol).without_signature;
        functions_.push_back({file.path, demangled.empty() ? symbol : demangled,
                              function->file_offset, file.has_loop, is_loop(*function)});
        entry->second = &functions_.back();
    }
    return entry->second;
}

const NativeFunction* NativeUnwinder::Impl::function_at(uint64_t address) {
    auto [entry, is_new] = by_address_.try_emplace(address, nullptr);
    if (!is_new) return entry->second;
    const auto next =
        std::upper_bound(ranges_.begin(), ranges_.end(), address,
                         [](uint64_t at, const Range& range) { return at < range.start; });
    const bool is_mapped = next != ranges_.begin() && address < std::prev(next)->end;
    if (is_mapped) {
        const Range& range = *std::prev(next);
        return entry->second = name(*range.file, address - range.start + range.file_offset);
    }
    if (nowhere_ == nullptr) {
        functions_.push_back({});
        nowhere_ = &functions_.back();
    }
    return entry->second = nowhere_;
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
    dwfl_thread_state_register_pc(thread, impl.registers_[kInstructionPointer]);
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
    impl.result_.frames.push_back({impl.function_at(is_exact ? pc : pc - 1), low});
    return impl.result_.frames.size() < kMaxNativeFrames ? DWARF_CB_OK : DWARF_CB_ABORT;
}

void NativeUnwinder::Impl::follow() {
    result_ = {};
    result_.is_complete = dwfl_getthread_frames(dwfl_.get(), 1, add_frame, this) == 0;
}

NativeStack NativeUnwinder::Impl::unwind(Registers registers, std::span<const char> stack) {
    if (registers.size() < SB_REGISTERS) return {};
    if (Clock::now() > looked_at_ + kLookAgain && !map_files()) return {};
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

Result<NativeUnwinder> NativeUnwinder::open(pid_t pid) {
    if (auto can = can_unwind(); !can) return std::move(can).error();
    auto impl = std::make_unique<Impl>(pid);
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
