// SPDX-License-Identifier: MIT
#include "fleet/asked.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "experiment/program_output.h"
#include "util/fd.h"
#include "util/text.h"

namespace speedbump::fleet {

namespace {

constexpr auto kPatience = std::chrono::seconds(30);
constexpr size_t kMostAnswer = 4u << 20; // bytes: some 40,000 pods
constexpr size_t kMostShown = 500;       // of what it says on stderr

// The end of what is in the file, as one line.
std::string last_words(const Fd& file) {
    std::string said(kMostShown, '\0');
    const off_t size = ::lseek(file.get(), 0, SEEK_END);
    const off_t from = std::max<off_t>(0, size - static_cast<off_t>(said.size()));
    const ssize_t got = ::pread(file.get(), said.data(), said.size(), from);
    said.resize(got > 0 ? static_cast<size_t>(got) : 0);
    while (said.ends_with('\n')) said.pop_back();
    for (size_t at = 0; (at = said.find('\n', at)) != std::string::npos;) said.replace(at, 1, "; ");
    return printable(said);
}

// What the program prints. The error names it, and has what it says on stderr.
Result<std::string> answer_of(const std::vector<std::string>& command) {
    const std::string& program = command.front();
    const Fd errors(::memfd_create("errors", MFD_CLOEXEC));
    if (!errors.valid()) return errno_error("memfd_create", errno);
    auto output = experiment::output_of(command, kPatience, kMostAnswer, &errors);
    if (!output && output.error().error_number == ENOENT)
        return make_error(ErrorKind::kUnsupported, "there is no program '" + program + "' here")
            .with_hint("start it where " + program +
                       " works, or name the hosts one by one, with --at");
    if (!output && output.error().kind == ErrorKind::kTimeout)
        return make_error(ErrorKind::kTimeout, fmt::format("{} does not answer within {} s",
                                                           program, kPatience.count()));
    if (!output) return std::move(output).error();
    if (output->status == 0) return std::move(output->text);
    const std::string said = last_words(errors);
    return make_error(
        ErrorKind::kIo,
        fmt::format(
            "{} ended with {} {}{}", program, WIFSIGNALED(output->status) ? "signal" : "status",
            WIFSIGNALED(output->status) ? WTERMSIG(output->status) : WEXITSTATUS(output->status),
            said.empty() ? "" : ": " + said));
}

Result<std::vector<Launch>> nodes_of(const std::string& id) {
    // Of a job that ended or waits, too: what it does is told then.
    auto text = answer_of({"squeue", "--noheader", "--states=all", "--jobs=" + id,
                           std::string("--format=") + kJobColumns});
    if (!text) return std::move(text).error();
    auto job = read_job(*text);
    if (!job) return std::move(job).error();
    text = answer_of({"scontrol", "show", "hostnames", job->nodes});
    if (!text) return std::move(text).error();
    return read_nodes(*job, *text);
}

} // namespace

Result<std::vector<Launch>> ask_slurm(const std::string& job) {
    auto launches = nodes_of(job);
    if (!launches) return std::move(launches).error().with_context("--at-slurm " + job);
    return launches;
}

Result<std::vector<Launch>> ask_kubernetes(const std::string& selector,
                                           std::vector<std::string>& left_out) {
    const std::string what = "--at-pods '" + selector + "'";
    const auto text =
        answer_of({"kubectl", "get", "pods", "--selector=" + selector, "--output", kPodColumns});
    if (!text) return Error(text.error()).with_context(what);
    auto launches = read_pods(*text, left_out);
    if (!launches) return std::move(launches).error().with_context(what);
    return launches;
}

} // namespace speedbump::fleet
