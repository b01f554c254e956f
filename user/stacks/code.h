// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "abi.h"
#include "cpython/layout.h"
#include "process/source.h"

namespace speedbump::stacks {

using cpython::kNone;
using cpython::Layout;
using process::load_at;
using process::Piece;
using process::Source;

// A Python function as people know it. All code objects made from one definition share one.
struct Function {
    uint32_t id = 0;  // counts from 0
    std::string name; // qualified from 3.11 on: "Cart.total"; UTF-8
    std::string file; // co_filename, UTF-8
    int first_line = 0;
};

// A code object of the target as it was when it was read.
class Code {
  public:
    const Function* function() const { return function_; }
    bool is_forgotten() const { return forgotten_; }
    // Whether an instruction pointer (3.10: an instruction's number) lies in it.
    bool contains(uint64_t ip, int32_t bytecode_copy) const;
    // The line that this instruction belongs to; 0 when it belongs to none.
    int line_at(uint64_t ip, int32_t bytecode_copy) const;
    bool knows_copy(int32_t bytecode_copy) const { return copies_.contains(bytecode_copy); }

  private:
    friend class CodeTable;
    struct LineSpan {
        uint32_t end; // bytes of bytecode
        int line;
    };
    uint64_t offset_of(uint64_t ip, int32_t bytecode_copy) const;

    const Function* function_ = nullptr;
    uint64_t address_ = 0;
    uint64_t bytecode_ = 0; // 0: 3.10, where instructions are numbered
    uint64_t bytecode_size_ = 0;
    std::vector<LineSpan> lines_;
    std::map<int32_t, uint64_t> copies_; // free-threaded: bytecode of thread-local copies
    uint32_t version_ = 0;
    std::vector<std::pair<Piece, std::string>> identity_;
    uint64_t bytes_ = 0;  // that all this takes
    uint64_t digest_ = 0; // abi.h: sb_identity_digest, once all of it was read
    bool confirmed_ = false;
    bool forgotten_ = false;
    uint64_t generation_ = 0; // of the table, when it was last known to be this code
};

// The code objects of a process by address. An address may be another code object's tomorrow: what
// the table says holds only while `is_current`, or after `matches` on memory read at a time at
// which the code object was certainly alive.
class CodeTable {
  public:
    // `code_type`: address of PyCode_Type, 0 if it isn't known. The source must outlive the table.
    CodeTable(const Source& source, const Layout& layout, uint64_t code_type)
        : source_(source), layout_(layout), code_type_(code_type) {}

    // What is known of the code object at this address, or nullptr.
    Code* find(uint64_t address);
    // Reads the code object at this address; nullptr when there is none. It isn't confirmed yet.
    Code* load(uint64_t address);
    // abi.h: sb_identity_digest of the code object at this address now.
    std::optional<uint64_t> digest_at(uint64_t address) const;
    // The code object that is, or was, at this address and has this digest; nullptr when there is
    // another one now.
    Code* find_identical(uint64_t address, uint64_t digest);
    // The code object is another one now. It lives on for those who still point to it.
    void forget(Code& code);
    // Frees what was forgotten, and, when there is much, all the rest; nobody may point to a code
    // object any more.
    void bury();
    // Whether there is something to bury. A program may make code objects as long as it runs; what
    // goes far beyond that at once is not loaded.
    bool is_full() const;
    // Reads where the bytecode copies of a code object lie (free-threaded builds).
    void load_copy(Code& code, int32_t bytecode_copy) const;

    // The target's count of freed code objects. Nothing is freed between two equal values. `then`:
    // before the identities were read; a code object that matched was alive after that.
    void set_generation(uint64_t then, uint64_t now) {
        generation_then_ = then;
        generation_ = now;
    }
    bool is_current(const Code& code) const {
        return code.confirmed_ && layout_.interpreter_generation != kNone &&
               code.generation_ == generation_;
    }
    // The memory that tells whether it still is the same code object, and the comparison with what
    // was read; `bytes` must be that of add_identity's pieces.
    void add_identity(const Code& code, std::vector<Piece>& pieces) const;
    size_t identity_bytes(const Code& code) const;
    bool matches(const Code& code, const char* bytes) const;
    bool identifies_by_version(const Code& code) const {
        return code.confirmed_ && code.version_ != 0 && versions_are_unique_;
    }
    void confirm(Code& code) const {
        code.confirmed_ = true;
        code.generation_ = generation_then_;
    }
    // Versions are counted per interpreter: with several of them they don't identify.
    void set_several_interpreters(bool several) { versions_are_unique_ = !several; }

    const std::deque<Function>& functions() const { return functions_; }

  private:
    const Function* intern(std::string name, std::string file, int first_line);
    bool may_load() const;

    const Source& source_;
    Layout layout_;
    uint64_t code_type_;
    uint64_t generation_ = 0;
    uint64_t generation_then_ = 0;
    bool versions_are_unique_ = true;
    std::unordered_map<uint64_t, std::unique_ptr<Code>> by_address_;
    std::vector<std::unique_ptr<Code>> forgotten_;
    uint64_t bytes_ = 0;      // that all code objects take
    uint64_t name_bytes_ = 0; // that all functions take
    std::deque<Function> functions_;
    std::map<std::tuple<std::string, std::string, int>, const Function*> interned_;
};

} // namespace speedbump::stacks
