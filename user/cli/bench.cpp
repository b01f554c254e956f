// SPDX-License-Identifier: MIT
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <utility>

#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/options.h"
#include "cli/output.h"
#include "report/inspect_bench.h"
#include "stacks/bench_programs.h"
#include "stacks/stack_reader.h"
#include "util/clock.h"
#include "util/log.h"

namespace speedbump::cli {

namespace {

struct BenchArguments {
    std::string what;
    std::string code = "basic";
    std::string threads = "all";
    std::string python = "python3";
    std::optional<std::chrono::nanoseconds> duration;
    pid_t pid = 0;
    OutputArguments output;
};

// A Python program that runs until the object is gone.
class Program {
  public:
    Program() = default;
    Program(Program&& other) noexcept
        : pid_(std::exchange(other.pid_, 0)), said_(std::move(other.said_)) {}
    ~Program() {
        if (pid_ <= 0) return;
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
    pid_t pid() const { return pid_; }

    // Returns when the program has said that it is ready.
    static Result<Program> start(const std::string& python, const std::string& code) {
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe", errno);
        Program program;
        program.said_ = Fd(ends[0]);
        Fd writing(ends[1]);
        program.pid_ = fork();
        if (program.pid_ < 0) return errno_error("fork", errno);
        if (program.pid_ == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            dup2(writing.get(), STDOUT_FILENO);
            execlp(python.c_str(), python.c_str(), "-c", code.c_str(), nullptr);
            _exit(kNoSuchProgram);
        }
        writing.reset();
        char line[8];
        if (read(program.said_.get(), line, sizeof(line)) <= 0)
            return make_error(ErrorKind::kNotFound, python + " did not start the program to read");
        return program;
    }

  private:
    pid_t pid_ = 0;
    Fd said_; // open as long as the program runs: unbuffered output comes in pieces
};

std::string program_code(const std::string& name) {
    if (name == "deep_static") return std::string(stacks::kDeepStaticProgram);
    if (name == "threads") return std::string(stacks::kThreadsProgram);
    return std::string(stacks::kBasicProgram);
}

stacks::WhichThreads which_threads(const std::string& name) {
    if (name == "main") return stacks::WhichThreads::kMain;
    if (name == "only_active") return stacks::WhichThreads::kOnlyActive;
    return stacks::WhichThreads::kAll;
}

Result<int> bench(const BenchArguments& arguments) {
    constexpr uint64_t kProgressEvery = 10'000;
    auto output = Output::open(arguments.output);
    if (!output) return std::move(output).error();
    std::optional<Program> program;
    pid_t pid = arguments.pid;
    if (pid == 0) {
        auto started = Program::start(arguments.python, program_code(arguments.code));
        if (!started) return std::move(started).error();
        pid = started->pid();
        program.emplace(std::move(*started));
    }
    stacks::ReaderOptions options;
    options.threads = which_threads(arguments.threads);
    auto reader = stacks::StackReader::open(pid, options);
    if (!reader) return std::move(reader).error();

    report::InspectBench result;
    if (arguments.pid == 0) result.code = arguments.code;
    result.threads = arguments.threads;
    result.python = reader->interpreter().describe();
    const auto duration = arguments.duration.value_or(std::chrono::seconds(10));
    const Clock::time_point start = Clock::now();
    while (result.total < duration) {
        const Clock::time_point before = Clock::now();
        const auto sampled = reader->sample();
        const Clock::time_point after = Clock::now();
        if (!sampled && sampled.error().kind == ErrorKind::kNotFound) return sampled.error();
        bool is_complete = sampled.has_value();
        if (sampled) {
            for (const stacks::ThreadStack* stack : reader->stacks())
                is_complete = is_complete && stack->fault == stacks::StackFault::kFine;
            result.stacks += reader->stacks().size();
        }
        ++result.attempts;
        if (is_complete) ++result.successes;
        result.work += after - before;
        result.total = after - start;
        if (result.attempts % kProgressEvery == 0)
            log::info(report::inspect_bench_progress(result));
    }
    if (arguments.output.json)
        output->write_line(report::inspect_bench_json(make_context("bench"), result));
    else
        output->write(report::inspect_bench_text(result));
    if (auto written = output->finish(); !written) return std::move(written).error();
    return int{kDone};
}

} // namespace

void add_bench(CLI::App& app, Action& action) {
    auto arguments = std::make_shared<BenchArguments>();
    CLI::App* command = app.add_subcommand("bench", "measure how fast stacks are read");
    command->add_option("what", arguments->what, "what to measure: inspect")
        ->type_name("WHAT")
        ->check(one_of({"inspect"}))
        ->required();
    command
        ->add_option("--code", arguments->code, "the program to read: basic, deep_static, threads")
        ->check(one_of({"basic", "deep_static", "threads"}));
    command->add_option("--threads", arguments->threads, "threads to read: all, main, only_active")
        ->check(one_of({"all", "main", "only_active"}));
    add_duration(*command, "-d,--duration", arguments->duration, "how long (10s)")
        ->transform(CLI::Validator(
            [](std::string& text) {
                const bool is_number = text.find_first_not_of("0123456789.") == std::string::npos;
                if (is_number) text += 's';
                return std::string();
            },
            ""));
    command->add_option("--python", arguments->python, "the interpreter that runs the program")
        ->type_name("PYTHON");
    command->add_option("-p,--pid", arguments->pid, "read this process instead")->type_name("PID");
    add_output_options(*command, arguments->output);
    command->footer(
        "Reads the stacks of a Python program as fast as it can, one call after the other.\n"
        "Examples:\n"
        "  speedbump bench inspect --code threads -d 5s\n"
        "  speedbump bench inspect --pid $(pidof -s gunicorn) -d 5s");
    command->final_callback(
        [arguments, &action] { action = [arguments] { return bench(*arguments); }; });
}

} // namespace speedbump::cli
