// SPDX-License-Identifier: MIT
#include "engine/python/cores.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <glob.h>
#include <limits.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <set>
#include <string_view>

#include "util/text.h"

namespace speedbump::engine {
namespace {

constexpr std::string_view kCorePrefix = "_core.cpython-";

std::string own_directory() {
    char path[PATH_MAX];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path));
    std::string text(path, size > 0 ? static_cast<size_t>(size) : 0);
    return text.substr(0, text.rfind('/'));
}

// The cores in a directory whose names have `build` where that of their interpreter's build is.
std::vector<std::string> cores_in(const std::string& directory, const std::string& build) {
    std::vector<std::string> paths;
    for (const char* place : {"/", "/*/speed_bump/"}) {
        glob_t found{};
        const std::string pattern =
            fmt::format("{}{}{}{}-*.so", directory, place, kCorePrefix, build);
        if (glob(pattern.c_str(), 0, nullptr, &found) == 0)
            paths.insert(paths.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
        globfree(&found);
    }
    return paths;
}

std::string without_links(const std::string& path) {
    char real[PATH_MAX];
    return realpath(path.c_str(), real) ? real : path;
}

// "314t" of ".../_core.cpython-314t-x86_64-linux-gnu.so" as "3.14t".
std::string tag_of(std::string_view path) {
    path.remove_prefix(path.rfind(kCorePrefix) + kCorePrefix.size());
    return "3." + std::string(path.substr(1, path.find('-') - 1));
}

// By number: "3.9" before "3.10".
bool is_older(const std::string& one, const std::string& other) {
    const auto minor = [](const std::string& tag) { return std::atoi(tag.c_str() + 2); };
    return minor(one) != minor(other) ? minor(one) < minor(other) : one < other;
}

// Who can replace this program can do all that it does. Not so where it has more rights than its
// caller (file capabilities): the kernel takes those from a program that is written to.
std::set<uid_t> trusted_owners() {
    std::set<uid_t> owners{0};
    if (getauxval(AT_SECURE) != 0) return owners;
    owners.insert(geteuid());
    struct stat own {};
    if (stat("/proc/self/exe", &own) == 0) owners.insert(own.st_uid);
    return owners;
}

std::optional<Error> distrust(const std::string& place, const std::set<uid_t>& owners) {
    struct stat info {};
    if (lstat(place.c_str(), &info) != 0) return errno_error("stat " + printable(place), errno);
    const std::string name = printable(place);
    if (!owners.contains(info.st_uid))
        return make_error(ErrorKind::kPermission,
                          fmt::format("{} belongs to user {}, who could change the code that goes "
                                      "into other processes",
                                      name, info.st_uid))
            .with_hint(fmt::format("chown root '{}', or install speedbump elsewhere", name));
    // A user's private group has the user's number and no other member.
    const bool group_is_private = info.st_uid != 0 && info.st_gid == info.st_uid;
    const mode_t writers = group_is_private ? S_IWOTH : S_IWOTH | S_IWGRP;
    // In a sticky directory nobody can replace what belongs to another.
    if ((info.st_mode & writers) == 0 || (S_ISDIR(info.st_mode) && (info.st_mode & S_ISVTX) != 0))
        return std::nullopt;
    return make_error(ErrorKind::kPermission,
                      fmt::format("others may write to {} (mode {:o}) and could change the code "
                                  "that goes into other processes",
                                  name, info.st_mode & 07777))
        .with_hint(fmt::format("chmod go-w '{}'", name));
}

} // namespace

Result<void> require_trusted(const std::string& path) {
    const std::set<uid_t> owners = trusted_owners();
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
        if (auto error = distrust(path.substr(0, end), owners)) return std::move(*error);
        if (end == std::string::npos) break;
    }
    if (auto error = distrust("/", owners)) return std::move(*error);
    return {};
}

std::vector<std::string> core_directories() {
    std::vector<std::string> directories;
    if (const char* list = secure_getenv("SPEEDBUMP_CORES")) {
        std::string_view rest = list;
        while (!rest.empty()) {
            std::string_view one = rest.substr(0, rest.find(':'));
            if (!one.empty()) directories.emplace_back(one);
            rest.remove_prefix(std::min(rest.size(), one.size() + 1));
        }
    }
    std::string own = own_directory();
    for (const char* place :
         {"/pyext/python", "/../pyext/python", "/../../pyext/python", "/../lib/speedbump/cores"})
        directories.push_back(own + place);
    return directories;
}

Result<std::string> find_core(const cpython::Interpreter& interpreter,
                              const std::vector<std::string>& directories) {
    const std::string build =
        fmt::format("{}{}{}{}", interpreter.major, interpreter.minor,
                    interpreter.free_threaded ? "t" : "", interpreter.debug ? "d" : "");
    for (const std::string& directory : directories) {
        const std::vector<std::string> paths = cores_in(directory, build);
        if (paths.empty()) continue;
        std::string path = without_links(paths[0]);
        if (auto trusted = require_trusted(path); !trusted)
            return std::move(trusted.error())
                .with_context("the core for " + interpreter.describe());
        return path;
    }
    return make_error(ErrorKind::kUnsupported, "no core is built for " + interpreter.describe())
        .with_hint(fmt::format("build it, in the source tree: cmake -B build "
                               "-DSPEEDBUMP_PYTHONS=python{} && cmake --build build",
                               interpreter.tag()));
}

std::vector<std::string> core_tags(const std::vector<std::string>& directories) {
    std::vector<std::string> tags;
    for (const std::string& directory : directories)
        for (const std::string& path : cores_in(directory, "3*")) tags.push_back(tag_of(path));
    std::sort(tags.begin(), tags.end(), is_older);
    tags.erase(std::unique(tags.begin(), tags.end()), tags.end());
    return tags;
}

Check check_cores(const std::vector<std::string>& directories) {
    const std::string name = "Python cores";
    const std::vector<std::string> tags = core_tags(directories);
    if (tags.empty())
        return {name, Check::State::kDegraded, "none: no Python function can be slowed",
                "install the package or the archive, which bring them, or build here with the "
                "headers of your Pythons (python3-dev)"};
    std::optional<Error> refused;
    for (const std::string& directory : directories)
        for (const std::string& path : cores_in(directory, "3*"))
            if (auto trusted = require_trusted(without_links(path)); !trusted && !refused)
                refused = std::move(trusted.error());
    if (refused) return {name, Check::State::kDegraded, refused->message, refused->hint};
    return {name, Check::State::kGood, fmt::format("for CPython {}", fmt::join(tags, ", ")), ""};
}

} // namespace speedbump::engine
