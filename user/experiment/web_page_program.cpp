// SPDX-License-Identifier: MIT
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/wait.h>

#include <cerrno>

#include "experiment/program_output.h"
#include "experiment/web_page.h"
#include "util/text.h"

namespace speedbump::experiment {

struct WebPage::Connection {};

WebPage::WebPage() = default;
WebPage::~WebPage() = default;

Result<std::string> WebPage::get(const std::string& url, std::chrono::milliseconds patience,
                                 size_t max_size) {
    const std::string seconds =
        fmt::format("{:.3f}", std::chrono::duration<double>(patience).count());
    // Of a privileged program the caller may not choose what is run, nor how it is configured.
    const char* program = ::getauxval(AT_SECURE) != 0 ? "/usr/bin/curl" : "curl";
    auto page =
        output_of({program, "--disable", "--globoff", "--silent", "--show-error", "--fail",
                   "--proto", "=http,https", "--max-time", seconds, "--", url},
                  patience + std::chrono::seconds(1), max_size); // its own limit comes first
    if (!page && page.error().error_number == ENOENT)
        return make_error(ErrorKind::kUnsupported, "get " + printable(url) + ": no program curl")
            .with_hint(
                "a statically linked speedbump asks by the program curl: install it, or use "
                "command: with another");
    if (!page) return make_error(ErrorKind::kIo, page.error().message);
    if (page->status != 0) // it has said why, on stderr
        return make_error(ErrorKind::kIo,
                          fmt::format("get {}: curl ended with {} {}", printable(url),
                                      WIFSIGNALED(page->status) ? "signal" : "status",
                                      WIFSIGNALED(page->status) ? WTERMSIG(page->status)
                                                                : WEXITSTATUS(page->status)));
    return std::move(page->text);
}

} // namespace speedbump::experiment
