// SPDX-License-Identifier: MIT
#include "util/text.h"

#include <gtest/gtest.h>

#include "util/units.h"

namespace speedbump {
namespace {

using namespace std::chrono_literals;

TEST(Text, DecodesUtf8AndKeepsOtherBytesApart) {
    const auto first = [](std::string_view text) { return decode_character(text, 0); };
    const auto expect = [](Character character, uint32_t code, uint32_t bytes) {
        EXPECT_EQ(character.code, code);
        EXPECT_EQ(character.bytes, bytes);
    };
    expect(first("a"), 'a', 1);
    expect(first(std::string_view("\0", 1)), 0, 1);
    expect(first("\u00e4"), 0xe4, 2);
    expect(first("\u6f22"), 0x6f22, 3);
    expect(first("\U0001f600"), 0x1f600, 4);
    for (const std::string_view bad :
         {"\x80", "\xc3", "\xc3(", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
          "\xf8\x88\x80\x80\x80", "\xe6\xbc", "\xff"}) {
        expect(first(bad), kInvalidByteBase + static_cast<unsigned char>(bad[0]), 1);
    }
}

TEST(Text, IsMadePrintable) {
    EXPECT_EQ(printable("plain \u00e4\u6f22"), "plain \u00e4\u6f22");
    EXPECT_EQ(printable("a\x1b[31m\t\r\x7f"), "a\\x1b[31m\\x09\\x0d\\x7f");
    EXPECT_EQ(printable("\xff\u202e"), "\\xff\\xe2\\x80\\xae");
}

TEST(Text, KnowsItsColumns) {
    const auto columns = [](std::string_view text) {
        return printed_columns(decode_character(text, 0));
    };
    EXPECT_EQ(columns("a"), 1u);
    EXPECT_EQ(columns("\u00e4"), 1u);
    EXPECT_EQ(columns("\u0301"), 0u);
    EXPECT_EQ(columns("\u6f22"), 2u);
    EXPECT_EQ(columns("\x01"), 4u);
    EXPECT_EQ(columns("\u202e"), 12u);
}

TEST(Units, ShowTimesWithThreeDigits) {
    const std::pair<std::chrono::nanoseconds, const char*> table[] = {
        {0ns, "0 ns"},          {7ns, "7 ns"},         {999ns, "999 ns"},    {1000ns, "1.00 us"},
        {1234ns, "1.23 us"},    {9996ns, "10.0 us"},   {12345ns, "12.3 us"}, {999'499ns, "999 us"},
        {999'500ns, "1.00 ms"}, {12'345us, "12.3 ms"}, {2'500ms, "2.50 s"},  {3600s, "3600 s"},
        {-1500ns, "-1.50 us"},
    };
    for (const auto& [time, text] : table) EXPECT_EQ(show_time(time), text);
}

TEST(Units, ShowRatesAndCounts) {
    const std::pair<double, const char*> table[] = {
        {0, "0"},       {0.001, "0"},     {0.25, "0.25"},    {17.5, "17.5"},
        {950, "950"},   {999.6, "1.00k"}, {91'700, "91.7k"}, {1.2e6, "1.20M"},
        {2e9, "2.00G"}, {-5, "-5"},       {1.0 / 0.0, "-"},
    };
    for (const auto& [rate, text] : table) EXPECT_EQ(show_rate(rate), text);
    EXPECT_EQ(show_count(0), "0");
    EXPECT_EQ(show_count(999), "999");
    EXPECT_EQ(show_count(1'000), "1,000");
    EXPECT_EQ(show_count(1'234'567), "1,234,567");
    EXPECT_EQ(show_count(~uint64_t{0}), "18,446,744,073,709,551,615");
}

} // namespace
} // namespace speedbump
