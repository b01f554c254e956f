// SPDX-License-Identifier: MIT
#include "report/stacks.h"

#include <fmt/format.h>

#include "report/json_parts.h"
#include "util/text.h"

namespace speedbump::report {

std::string stacks_text(const std::vector<DumpedProcess>& processes) {
    std::string text;
    for (const DumpedProcess& process : processes) {
        if (!text.empty()) text += '\n';
        text +=
            fmt::format("process {}: {}\n", process.pid, printable(process.interpreter.describe()));
        for (const DumpedThread& thread : process.threads) {
            const stacks::ThreadStack& stack = thread.stack;
            text += fmt::format("\nthread {} \"{}\"", stack.tid, printable(thread.name));
            if (stack.interpreter != 0) text += fmt::format(", interpreter {}", stack.interpreter);
            text += fmt::format(": {}{}\n", thread.state,
                                stack.holds_gil ? ", holds the interpreter lock" : "");
            if (stack.fault != stacks::StackFault::kFine) {
                text += fmt::format("    could not be read: {}\n", describe(stack.fault));
                continue;
            }
            if (stack.frames.empty()) text += "    runs no Python code\n";
            for (const stacks::Frame& frame : stack.frames)
                text += fmt::format("    {} ({}:{})\n", printable(frame.function->name),
                                    printable(frame.function->file), frame.line);
        }
    }
    return text;
}

std::string stacks_json(const Context& context, const std::vector<DumpedProcess>& processes) {
    using nlohmann::ordered_json;
    ordered_json document = document_head(context, "speedbump/dump/1");
    ordered_json list = ordered_json::array();
    for (const DumpedProcess& process : processes) {
        ordered_json threads = ordered_json::array();
        for (const DumpedThread& thread : process.threads) {
            const stacks::ThreadStack& stack = thread.stack;
            ordered_json one = {{"tid", stack.tid},
                                {"name", thread.name},
                                {"interpreter", stack.interpreter},
                                {"state", thread.state},
                                {"holds_gil", stack.holds_gil}};
            if (stack.fault == stacks::StackFault::kFine) {
                ordered_json frames = ordered_json::array();
                for (const stacks::Frame& frame : stack.frames)
                    frames.push_back({{"function", frame.function->name},
                                      {"file", frame.function->file},
                                      {"line", frame.line}});
                one["frames"] = std::move(frames);
            } else {
                one["error"] = describe(stack.fault);
            }
            threads.push_back(std::move(one));
        }
        list.push_back({{"pid", process.pid},
                        {"python", process.interpreter.tag()},
                        {"path", process.interpreter.path},
                        {"threads", std::move(threads)}});
    }
    document["processes"] = std::move(list);
    return to_line(document);
}

} // namespace speedbump::report
