// SPDX-License-Identifier: MIT
#include "experiment/device_spec.h"

#include <algorithm>
#include <charconv>

namespace speedbump::experiment {

namespace {

constexpr unsigned kMaxArguments = 32;
constexpr uint32_t kMaxWithin = 4096;

// The CUDA driver, without the functions of per-thread default streams (*_ptsz): there one handle
// means many streams. What copies and waits at once counts as queued until somebody waits for it.
constexpr const char* kCuda =
    "libcuda.so*:"
    "cuLaunchKernel(_,_,_,_,_,_,_,_,stream),cuLaunchKernelEx(stream@32),"
    "cuLaunchCooperativeKernel(_,_,_,_,_,_,_,_,stream),cuGraphLaunch(_,stream),"
    "cuMemcpyAsync(_,_,_,stream),cuMemcpyHtoDAsync_v2(_,_,_,stream),"
    "cuMemcpyDtoHAsync_v2(_,_,_,stream),cuMemcpyDtoDAsync_v2(_,_,_,stream),"
    "cuMemsetD8Async(_,_,_,stream),cuMemsetD32Async(_,_,_,stream),"
    "cuMemcpyHtoD_v2,cuMemcpyDtoH_v2,cuMemcpyDtoD_v2,"
    "cuEventRecord(event,stream):"
    "cuStreamSynchronize(stream),cuEventSynchronize(event),cuCtxSynchronize";

Error wrong_device(const std::string& what) {
    return make_error(ErrorKind::kUsage, what);
}

// At commas that are in no parentheses; empty where these do not match.
std::vector<std::string> split(const std::string& list) {
    std::vector<std::string> parts(1);
    int depth = 0;
    for (const char one : list) {
        depth += one == '(' ? 1 : one == ')' ? -1 : 0;
        if (depth < 0 || depth > 1) return {};
        if (one == ',' && depth == 0)
            parts.emplace_back();
        else
            parts.back() += one;
    }
    return depth == 0 ? parts : std::vector<std::string>();
}

// One of "_", "stream", "event", and the latter two with @OFFSET.
Result<void> take_argument(const std::string& text, unsigned number, DeviceFunction& function) {
    if (text == "_" || text.empty()) return {};
    const size_t at = text.find('@');
    const std::string kind = text.substr(0, at);
    if (kind != "stream" && kind != "event")
        return wrong_device("the argument '" + text + "' of " + function.name +
                            " must be stream, event or _");
    DeviceArgument& argument = kind == "stream" ? function.queue : function.event;
    if (argument.number != 0)
        return wrong_device(function.name + " has two arguments '" + kind + "'");
    argument.number = number;
    if (at == std::string::npos) return {};
    uint32_t within = 0;
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data() + at + 1, end, within);
    if (error != std::errc() || stopped != end || within > kMaxWithin)
        return wrong_device("'" + text + "' must end in the offset of a field, at most " +
                            std::to_string(kMaxWithin));
    argument.within = within;
    return {};
}

Result<DeviceFunction> parse_function(const std::string& text) {
    DeviceFunction function;
    const size_t open = text.find('(');
    function.name = text.substr(0, open);
    if (function.name.empty()) return wrong_device("a function has no name");
    if (open == std::string::npos) return function;
    if (text.back() != ')') return wrong_device("'" + text + "' must end in ')'");
    const std::string list = text.substr(open + 1, text.size() - open - 2);
    unsigned number = 0;
    for (size_t begin = 0; begin <= list.size();) {
        const size_t end = std::min(list.find(',', begin), list.size());
        if (++number > kMaxArguments)
            return wrong_device(function.name + " has too many arguments");
        if (auto taken = take_argument(list.substr(begin, end - begin), number, function); !taken)
            return std::move(taken).error();
        begin = end + 1;
    }
    return function;
}

Result<void> take_list(const std::string& list, bool waits, DeviceSpec& spec) {
    const std::vector<std::string> parts = split(list);
    if (parts.empty()) return wrong_device("the parentheses of '" + list + "' do not match");
    for (const std::string& part : parts) {
        auto function = parse_function(part);
        if (!function) return std::move(function).error();
        const auto same =
            std::find_if(spec.functions.begin(), spec.functions.end(),
                         [&](const DeviceFunction& other) { return other.name == function->name; });
        const bool known = same != spec.functions.end();
        if (known && (!waits || same->waits))
            return wrong_device(function->name + " is there twice");
        if (known && !same->launches)
            return wrong_device(function->name +
                                " puts an event into a queue: it can't be waited for");
        if (known) {
            same->waits = true;
            continue;
        }
        function->waits = waits;
        function->records = !waits && function->event.number != 0;
        function->launches = !waits && !function->records;
        spec.functions.push_back(std::move(*function));
    }
    return {};
}

} // namespace

Result<DeviceSpec> parse_device(const std::string& text) {
    if (text == "cuda") {
        auto cuda = parse_device(kCuda);
        if (cuda) cuda->may_lack = true;
        return cuda;
    }
    const size_t first = text.find(':');
    const size_t second = first == std::string::npos ? first : text.find(':', first + 1);
    if (first == 0 || second == std::string::npos)
        return wrong_device("it must be device:cuda or device:BINARY:LAUNCH,...:WAIT,...");
    DeviceSpec spec;
    spec.binary = text.substr(0, first);
    if (auto taken = take_list(text.substr(first + 1, second - first - 1), false, spec); !taken)
        return std::move(taken).error();
    if (auto taken = take_list(text.substr(second + 1), true, spec); !taken)
        return std::move(taken).error();
    const auto is_launch = [](const DeviceFunction& one) { return one.launches; };
    if (std::none_of(spec.functions.begin(), spec.functions.end(), is_launch))
        return wrong_device("none of its functions launches anything");
    return spec;
}

} // namespace speedbump::experiment
