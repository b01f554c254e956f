// SPDX-License-Identifier: MIT
#include "report/page.h"

namespace speedbump::report {

namespace {

using nlohmann::ordered_json;

// JSON inside a script element: nothing in it may end the element or begin a comment.
std::string for_script(const ordered_json& json) {
    const std::string text = json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    std::string safe;
    safe.reserve(text.size());
    for (const char character : text) {
        if (character == '<')
            safe += "\\u003c";
        else
            safe += character;
    }
    return safe;
}

void replace(std::string& text, std::string_view mark, std::string_view with) {
    if (const size_t at = text.find(mark); at != std::string::npos)
        text.replace(at, mark.size(), with);
}

} // namespace

std::string fill_page(std::string_view page, std::string_view script, const ordered_json& data) {
    std::string filled(page);
    replace(filled, "@SCRIPT@", script);
    replace(filled, "@DATA@", for_script(data)); // last: it may hold any text
    return filled;
}

} // namespace speedbump::report
