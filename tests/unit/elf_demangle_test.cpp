// SPDX-License-Identifier: MIT
#include "elf/demangle.h"

#include <gtest/gtest.h>

#include <chrono>

#include "../cpu_time.h"

namespace speedbump::elf {
namespace {

struct Case {
    const char* symbol;
    const char* with_signature;
    const char* without_signature;
};

class DemangleTest : public testing::TestWithParam<Case> {};

TEST_P(DemangleTest, BothForms) {
    Demangled names = demangle(GetParam().symbol);
    EXPECT_EQ(names.with_signature, GetParam().with_signature);
    EXPECT_EQ(names.without_signature, GetParam().without_signature);
}

INSTANTIATE_TEST_SUITE_P(
    Cpp, DemangleTest,
    testing::Values(
        Case{"_ZN2ns5Class6methodEi", "ns::Class::method(int)", "ns::Class::method"},
        Case{"_ZNK2ns5Class6methodEi", "ns::Class::method(int) const", "ns::Class::method"},
        Case{"_Z1fv", "f()", "f"}, Case{"_ZN2ns1fIiEET_S1_", "int ns::f<int>(int)", "ns::f<int>"},
        Case{"_ZN1AclEv", "A::operator()()", "A::operator()"},
        Case{"_ZN1AcvbEv", "A::operator bool()", "A::operator bool"},
        Case{"_ZlsRSoi", "operator<<(std::ostream&, int)", "operator<<"},
        Case{"_ZN12_GLOBAL__N_11fEi", "(anonymous namespace)::f(int)", "(anonymous namespace)::f"},
        Case{"_ZN1AC2Ei", "A::A(int)", "A::A"}, Case{"_ZN1AD0Ev", "A::~A()", "A::~A"},
        Case{"_Z1fIiEPFvT_ES0_", "void (*f<int>(int))(int)", "f<int>"},
        Case{"_ZZ1fiENKUliE_clEi", "f(int)::{lambda(int)#1}::operator()(int) const",
             "f(int)::{lambda(int)#1}::operator()"},
        Case{"_ZN1A1fB5cxx11Ev", "A::f[abi:cxx11]()", "A::f[abi:cxx11]"},
        Case{"_ZThn16_N1A1fEv", "non-virtual thunk to A::f()", "non-virtual thunk to A::f()"},
        Case{"_Z1fi.constprop.0", "f(int) [clone .constprop.0]", "f"},
        Case{"_Z1fi.cold", "f(int) [clone .cold]", "f [clone .cold]"},
        Case{"_Z1fi.part.0", "f(int) [clone .part.0]", "f [clone .part.0]"}));

INSTANTIATE_TEST_SUITE_P(
    Rust, DemangleTest,
    testing::Values(Case{"_ZN4core3fmt5write17h0123456789abcdefE",
                         "core::fmt::write::h0123456789abcdef", "core::fmt::write"},
                    Case{"_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$"
                         "$GT$3bar17h930b740aa94f1d3aE",
                         "<Test + 'static as foo::Bar<Test>>::bar::h930b740aa94f1d3a",
                         "<Test + 'static as foo::Bar<Test>>::bar"},
                    Case{"_RNvC6_123foo3bar", "123foo[0]::bar", "123foo::bar"},
                    Case{"_RNvMsr_NtCs3ssYzQotkvD_3std4pathNtB5_7PathBuf3newCs15kBYyAo9fc_7mycrate",
                         "<std[284a76a8b41a7fd3]::path::PathBuf>::new",
                         "<std::path::PathBuf>::new"}));

INSTANTIATE_TEST_SUITE_P(Neither, DemangleTest,
                         testing::Values(Case{"malloc", "", ""}, Case{"_Z", "", ""},
                                         Case{"_ZN", "", ""}, Case{"_Z1", "", ""},
                                         Case{"_ZN2ns5Clas", "", ""}, Case{"_R", "", ""},
                                         Case{"_Runtime", "", ""}, Case{"_RNvC6_12", "", ""},
                                         Case{"", "", ""}));

TEST(Demangle, CheapTest) {
    EXPECT_TRUE(is_mangled("_Z1fv"));
    EXPECT_TRUE(is_mangled("_RNvC1a1b"));
    EXPECT_FALSE(is_mangled("main"));
    EXPECT_FALSE(is_mangled("_start"));
    EXPECT_FALSE(is_mangled("_Z"));
    EXPECT_FALSE(is_mangled("_Read"));
}

// A name of several thousand bytes, as templates make them.
TEST(Demangle, LongNames) {
    std::string type = "1A";
    for (int i = 0; i < 400; ++i) type = "1BI" + type + "E";
    Demangled names = demangle("_Z1f" + type);
    EXPECT_TRUE(names.with_signature.starts_with("f(B<B<"));
    EXPECT_EQ(names.without_signature, "f");
}

TEST(Demangle, HostileNamesEndSoon) {
    auto start = CpuClock::now();
    // Every template has the one before it twice as argument, so the text doubles each time.
    std::string doubling = "_Z1f1A1BIS_S_E";
    for (int i = 1; i < 200; ++i) {
        std::string index;
        for (int value = 2 * i - 1; value > 0; value /= 36)
            index.insert(index.begin(), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[value % 36]);
        doubling += "1CIS" + index + "_S" + index + "_E";
        if (i == 2) {
            EXPECT_TRUE(
                demangle(doubling).with_signature.ends_with("C<C<B<A, A>, B<A, A> >, "
                                                            "C<B<A, A>, B<A, A> > >)"));
        }
    }
    EXPECT_EQ(demangle(doubling).with_signature, "");
    demangle("_Z1f" + std::string(16000, 'P') + "i");
    demangle("_Z1f" + std::string(100000, 'P') + "i");
    demangle("_ZN" + std::string(8000, 'L') + "E");
    std::string deep = "_Z1fI";
    for (int i = 0; i < 5000; ++i) deep += "1AI";
    demangle(deep);
    std::string rust = "_RNvC1a1b";
    for (int i = 0; i < 5000; ++i) rust += "INtC1a1b";
    demangle(rust);
    std::string conversions = "_ZN1A";
    for (int i = 0; i < 100; ++i) conversions += "cv";
    demangle(conversions + "iIiEEv");
    std::chrono::duration<double> took = CpuClock::now() - start;
    EXPECT_LT(took.count(), 5.0);
}

// Each crashed libiberty, or kept it for hours, and was found by fuzz_names.
TEST(Demangle, WhatHasNoEndStaysMangled) {
    const auto start = CpuClock::now();
    EXPECT_EQ(demangle("_ZStUldiiRT0_S_IES1_DtsZT0_EE_NUt_Ev").with_signature, "");
    EXPECT_EQ(demangle("_RXC1aFGzzzzzzzz_EuC1b").with_signature, ""); // lifetimes that nobody sees
    EXPECT_EQ(demangle("_RNvC1a1b.llvm.1").with_signature, "a[0]::b");
    std::string conversions = "_Zcv";
    for (int i = 0; i < 200; ++i) conversions += "T_IXcv";
    EXPECT_EQ(demangle(conversions).with_signature, "");
    EXPECT_LT(std::chrono::duration<double>(CpuClock::now() - start).count(), 5.0);
}

// For each pair of a template and a reference to a parameter libiberty puts something on the stack
// before it prints: 86 MB here.
TEST(Demangle, TemplatesAndReferencesThatFillTheStack) {
    std::string name = "_Z6handle";
    for (int i = 0; i < 40; ++i) {
        name += "1cI";
        for (int k = 0; k < 66; ++k) name += "RT_";
        for (int k = 0; k < 50; ++k) name += "1bIE";
        name += "E";
    }
    EXPECT_EQ(demangle(name).with_signature, "");
}

// Is walked for what a pack expands to before it is printed: 2^45 steps that print nothing.
TEST(Demangle, DoublingsThatAreNotPrinted) {
    std::string name = "_Z6handleM1xI1aIiiE";
    const auto index = [](int value) {
        const char* digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        std::string text(1, digits[value % 36]);
        return value >= 36 ? digits[value / 36] + text : text;
    };
    const int kLevels = 45;
    name += "S0_IS1_S1_E";
    for (int i = 2; i < kLevels; ++i) name += "S0_IS" + index(i) + "_S" + index(i) + "_E";
    name += "EDpS" + index(kLevels) + "_";
    const auto start = CpuClock::now();
    EXPECT_EQ(demangle(name).with_signature, "");
    EXPECT_LT(CpuClock::now() - start, std::chrono::seconds(2));
}

// A fixed walk through broken variants: no crash, no hang (the sanitizers watch).
TEST(Demangle, MutatedNames) {
    uint64_t random = 1;
    auto next = [&random] {
        random = random * 6364136223846793005u + 1442695040888963407u;
        return random >> 33;
    };
    const std::string seeds[] = {"_ZN2ns1fIiJNS_1AILi3EEEEEvT_DpT0_", "_ZZ1fiENKUliE_clEi",
                                 "_RNvMsr_NtCs3ssYzQotkvD_3std4pathNtB5_7PathBuf3newCs15_7mycrate",
                                 "_ZN4core3fmt5write17h0123456789abcdefE"};
    const std::string alphabet = "0123456789_NIESTLKRPFvijlbcdDCZXJM.$ABGnB";
    for (int i = 0; i < 20000; ++i) {
        std::string name = seeds[next() % 4];
        for (uint64_t n = next() % 6; n > 0; --n)
            name[2 + next() % (name.size() - 2)] = alphabet[next() % alphabet.size()];
        Demangled names = demangle(name);
        EXPECT_LE(names.with_signature.size(), 128u << 10);
    }
}

} // namespace
} // namespace speedbump::elf
