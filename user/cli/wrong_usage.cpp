// SPDX-License-Identifier: MIT
#include "cli/wrong_usage.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace speedbump::cli {
namespace {

// How many letters must change, come, go or trade places with the next to make one word of the
// other (optimal string alignment).
size_t changes_between(std::string_view one, std::string_view other) {
    std::vector<std::vector<size_t>> least(one.size() + 1, std::vector<size_t>(other.size() + 1));
    for (size_t i = 0; i <= one.size(); ++i) {
        for (size_t k = 0; k <= other.size(); ++k) {
            if (i == 0 || k == 0) {
                least[i][k] = i + k;
                continue;
            }
            least[i][k] = std::min({least[i - 1][k - 1] + (one[i - 1] != other[k - 1]),
                                    least[i - 1][k] + 1, least[i][k - 1] + 1});
            if (i > 1 && k > 1 && one[i - 1] == other[k - 2] && one[i - 2] == other[k - 1])
                least[i][k] = std::min(least[i][k], least[i - 2][k - 2] + 1);
        }
    }
    return least[one.size()][other.size()];
}

// The one of `names` that `word` is a slip of; empty: none.
std::string nearest(const std::string& word, const std::vector<std::string>& names) {
    std::string best;
    size_t least = std::max<size_t>(1, word.size() / 3) + 1;
    for (const std::string& name : names) {
        const size_t changes = changes_between(word, name);
        if (changes < least) {
            least = changes;
            best = name;
        }
    }
    return best;
}

std::vector<std::string> command_names(const CLI::App& app) {
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
}

std::vector<std::string> option_names(const CLI::App& command) {
    std::vector<std::string> names;
    for (const CLI::Option* option : command.get_options()) {
        for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
}

Error usage_error(std::string message, std::string hint) {
    return make_error(ErrorKind::kUsage, std::move(message)).with_hint(std::move(hint));
}

Error wrong_command(const CLI::App& app, const std::vector<std::string>& words) {
    const std::string help = app.get_name() + " --help";
    if (words.empty()) return usage_error("no command is given", help);
    const std::string& word = words.front();
    if (word.starts_with('-')) return usage_error("there is no option '" + word + "'", help);
    const std::string meant = nearest(word, command_names(app));
    return usage_error("there is no command '" + word + "'",
                       meant.empty() ? help : app.get_name() + " " + meant);
}

Error wrong_word(const CLI::App& command, const std::string& word, const std::string& help) {
    if (!word.starts_with('-')) return usage_error("'" + word + "' is one argument too many", help);
    const std::string name = word.substr(0, word.find('='));
    const std::string meant = nearest(name, option_names(command));
    return usage_error("'" + command.get_name() + "' has no option '" + name + "'",
                       meant.empty() ? help : meant);
}

} // namespace

Error wrong_usage(const CLI::App& app, const CLI::ParseError& error,
                  const std::vector<std::string>& words) {
    const auto commands = app.get_subcommands();
    if (commands.empty()) return wrong_command(app, words);
    const CLI::App& command = *commands.back();
    const std::string help = app.get_name() + " " + command.get_name() + " --help";
    const std::vector<std::string> unknown = app.remaining(true);
    // Not by its name, which is the command's for this one.
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !unknown.empty()) {
        return wrong_word(command, unknown.front(), help);
    }
    std::string message = error.what();
    // The library's "Could not convert: --seed = abc"; words are converted to numbers only.
    const std::string_view start = "Could not convert: ";
    const size_t equals = message.find(" = ");
    if (message.starts_with(start) && equals != std::string::npos) {
        message = message.substr(start.size(), equals - start.size()) + ": '" +
                  message.substr(equals + 3) + "' is not a valid number";
    }
    // Its "--pid: 1 required PID missing".
    if (error.get_name() == "ArgumentMismatch" && message.ends_with(" missing")) {
        message = message.substr(0, message.find(": ")) + ": a value is missing";
    }
    return usage_error(message, help);
}

} // namespace speedbump::cli
