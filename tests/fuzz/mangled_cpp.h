// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "name_maker.h"

namespace speedbump::fuzz {

// Mangled names by the grammar of C++ (Itanium), of which each prefers some things, drawn anew for
// it: there are names that double with each substitution, that are nested deeply, that refer to
// parameters or expand packs, and little else.
class CppName : NameMaker {
  public:
    CppName(Random& random, size_t size) : NameMaker(random, size) {
        constexpr std::array<size_t, 5> kParameters = {1, 1, 2, 6, 40};
        constexpr std::array<std::string_view, 5> kPrefixes = {"P", "R", "O", "K", "PROKVCG"};
        parameters_ = kParameters[random_.below(kParameters.size())];
        prefixes_ = kPrefixes[random_.below(kPrefixes.size())];
        empty_ = random_.below(17);
        referred_ = random_.below(17);
        leaf_ = random_.below(3);
        draw(types_);
        draw(arguments_);
        draw(expressions_);
        draw(names_);
    }

    std::string make() {
        out_ = "_Z";
        encoding();
        return std::move(out_);
    }

  private:
    void encoding() {
        const Level level(levels_);
        constexpr std::array<std::string_view, 8> kSpecial = {"TV",  "TI", "Th8_", "Tv0_n24_",
                                                              "GTt", "GV", "TS",   "Tch0_h8_"};
        if (one_in(16)) {
            const std::string_view special = kSpecial[random_.below(kSpecial.size())];
            out_ += special;
            if (special == "TV" || special == "TI" || special == "TS") return type();
            if (is_full()) {
                out_ += "1fv";
                return;
            }
            return encoding();
        }
        name();
        if (!one_in(16)) type_list();
    }

    void name() {
        if (is_full()) {
            out_ += "1f";
            return;
        }
        const Level level(levels_);
        switch (weighted(names_)) {
            case 0:
                unqualified();
                break;
            case 1:
                out_ += one_in(8) ? "NK" : "N";
                prefixes();
                out_ += "E";
                break;
            case 2: // the functions around it have parameters of templates, too
                out_ += "Z";
                encoding();
                out_ += one_in(8) ? "Es" : "E";
                if (!out_.ends_with('s')) name();
                break;
            case 3:
                unqualified();
                ++substitutions_;
                arguments();
                break;
            case 4:
                out_ += "St";
                unqualified();
                break;
        }
    }

    void unqualified() {
        constexpr std::array<std::string_view, 8> kOperators = {"pl", "cl", "ix",   "nw",
                                                                "C1", "D0", "li1x", "Ut_"};
        if (one_in(12)) {
            out_ += kOperators[random_.below(kOperators.size())];
        } else if (!is_full() && one_in(16)) {
            out_ += "cv";
            type();
        } else if (!is_full() && one_in(16)) {
            out_ += "Ul";
            type_list();
            out_ += one_in(2) ? "E_" : "E0_";
        } else {
            identifier();
            if (one_in(64)) out_ += "B1t"; // an ABI's tag
        }
    }

    // All of them but the last can be substituted.
    void prefixes() {
        if (one_in(8) && substitutions_ > 0)
            reference();
        else
            unqualified();
        for (size_t count = some(); count > 0 && !is_full(); --count) {
            ++substitutions_;
            if (one_in(2))
                unqualified();
            else
                arguments();
        }
    }

    void list(void (CppName::*element)()) {
        for (size_t count = some(); count > 0 && !is_full(); --count) {
            const size_t before = substitutions_;
            const auto make = [this, element] { (this->*element)(); };
            if (!copies_ || !one_in(6)) {
                make();
                continue;
            }
            const size_t more = copies(make);
            substitutions_ += more * (substitutions_ - before);
        }
    }

    void type_list() {
        if (is_full() || one_in(8)) {
            out_ += 'v';
            return;
        }
        list(&CppName::type);
        if (out_.size() >= size_) out_ += 'v';
    }

    void arguments() {
        const Level level(levels_);
        out_ += 'I';
        if (random_.below(16) >= empty_) list(&CppName::argument);
        out_ += 'E';
    }

    void argument() {
        if (is_full()) return leaf();
        const Level level(levels_);
        switch (weighted(arguments_)) {
            case 0:
            case 1:
                return type();
            case 2:
                out_ += 'J'; // a pack
                if (random_.below(16) >= empty_) list(&CppName::argument);
                break;
            case 3:
                out_ += "Lin" + std::to_string(random_.below(1000));
                break;
            case 4:
                out_ += 'X';
                expression();
                break;
            case 5: // prints nothing where all of them are empty packs
                out_ += "JJ";
                for (size_t count = some(); count > 1 && !is_full(); --count) parameter();
                out_ += 'E';
                break;
        }
        out_ += 'E';
    }

    // Something that was there before, mostly what came last.
    void reference() {
        const size_t index =
            random_.below(16) < newest_ ? substitutions_ - 1 : random_.below(substitutions_);
        out_ += 'S';
        if (index > 0) append_number(out_, index - 1, 36, kDigits);
        out_ += '_';
    }

    void parameter() {
        ++substitutions_;
        out_ += 'T';
        if (const size_t index = random_.below(parameters_); index > 0)
            append_number(out_, index - 1, 36, kDigits);
        out_ += '_';
    }

    // Mostly T& or T&&, or mostly T.
    void parameter_type() {
        if (random_.below(16) < referred_) {
            out_ += prefixes_[random_.below(prefixes_.size())];
            ++substitutions_;
        }
        parameter();
    }

    static bool is_qualifier(char c) { return c == 'K' || c == 'V'; } // several are one

    // A type of no more levels.
    void leaf() {
        if (leaf_ == 1 && substitutions_ > 0) return reference();
        if (leaf_ == 2) return parameter_type();
        out_ += 'i';
    }

    void type() {
        constexpr std::array<std::string_view, 8> kBuiltin = {"i", "c",  "d",  "b",
                                                              "z", "Ss", "Dn", "Di"};
        if (is_hole()) return;
        if (is_full()) return leaf();
        if (copies_ && !wants_hole_ && one_in(12)) {
            const size_t before = substitutions_;
            const size_t more = nest([this] { type(); }, [this] { leaf(); });
            substitutions_ += more * (substitutions_ - before);
            return;
        }
        may_repeat();
        const Level level(levels_);
        switch (weighted(types_)) {
            case 0:
                out_ += kBuiltin[random_.below(kBuiltin.size())];
                return;
            case 1:
                if (substitutions_ == 0) {
                    out_ += 'i';
                    return;
                }
                reference();
                if (!one_in(3)) return;
                arguments(); // of what was a template before
                break;
            case 2:
                return parameter_type();
            case 3:
                identifier();
                break;
            case 4:
                identifier();
                ++substitutions_;
                arguments();
                break;
            case 5:
                for (size_t count = some(); count > 1 && !is_full(); --count) {
                    out_ += prefixes_[random_.below(prefixes_.size())];
                    substitutions_ += is_qualifier(out_.back()) ? 0 : 1;
                }
                out_ += prefixes_[random_.below(prefixes_.size())];
                type();
                break;
            case 6:
                out_ += 'N';
                prefixes();
                out_ += 'E';
                break;
            case 7: // a class within a function
                out_ += 'Z';
                encoding();
                out_ += 'E';
                identifier();
                break;
            default:
                compound_type();
        }
        ++substitutions_;
    }

    // What stands for itself, and for types, lists of these, arguments, parameters and expressions.
    void write(std::string_view production) {
        for (size_t i = 0; i < production.size(); ++i) {
            if (production[i] != '%') {
                out_ += production[i];
                continue;
            }
            switch (production[++i]) {
                case 't':
                    type();
                    break;
                case 'l':
                    type_list();
                    break;
                case 'a':
                    arguments();
                    break;
                case 'p':
                    parameter();
                    break;
                case 'r':
                    parameter_type();
                    break;
                default:
                    expression();
            }
        }
    }

    // A and M have first what is printed last.
    void compound_type() {
        constexpr std::array<std::string_view, 12> kTypes = {
            "Dp%t",  "Dp%t",   "F%lE",  "A%e_%t",  "M%t%t",  "DT%eE",
            "Dt%eE", "Dv4_%t", "U1q%t", "U1q%a%t", "1aI%rE", "Z1f%av%tE1x"};
        write(kTypes[random_.below(kTypes.size())]);
    }

    void expression() {
        constexpr std::array<std::string_view, 14> kExpressions = {
            "Li7E",    "%p",   "st%t", "ti%t",   "ng%e", "pl%e%e", "gt%e%e",
            "cl%e%eE", "sZ%p", "sp%e", "cv%t%e", "fp_",  "fL0p_",  "sP%tE"};
        if (is_full()) {
            out_ += "Li1E";
            return;
        }
        const Level level(levels_);
        write(kExpressions[weighted(expressions_)]);
    }

    static constexpr const char* kDigits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

    size_t parameters_ = 1; // of a template, that are referred to
    std::string_view prefixes_;
    size_t empty_ = 0;    // of 16 lists of arguments
    size_t referred_ = 0; // of 16 parameters
    size_t leaf_ = 0;
    size_t substitutions_ = 0;
    std::array<size_t, 6> arguments_;
    std::array<size_t, 11> types_;
    std::array<size_t, 14> expressions_;
    std::array<size_t, 5> names_;
};

} // namespace speedbump::fuzz
