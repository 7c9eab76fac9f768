#include "parse_problem.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "model/text.h"

namespace stagehand::cli {

namespace {

// The option's description as the second half of a sentence.
std::string in_sentence(const CLI::Option& option) {
    std::string text = option.get_description();
    if (text.size() > 1 && text[1] >= 'a' && text[1] <= 'z')
        text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
    else if (text.starts_with("A "))
        text[0] = 'a';
    return text;
}

// "--budget B", "MODEL".
std::string usage_of(const CLI::Option& option) {
    const std::string type = option.get_type_name();
    return option.get_name() + (option.get_positional() || type.empty() ? "" : " " + type);
}

// The option that a message of the parser begins with or ends with.
const CLI::Option* option_in(const CLI::App& app, const std::string& message) {
    const CLI::Option* found = nullptr;
    for (const CLI::Option* option : app.get_options()) {
        const std::string name = option->get_name();
        const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
        const bool named = message.starts_with(bare + " was given a disallowed flag override") ||
                           message.starts_with(name + " ") || message.starts_with(name + ":") ||
                           message.ends_with(" " + name);
        found = named ? option : found;
    }
    return found;
}

// The text for arguments that the subcommand does not take.
std::string unexpected_arguments(const CLI::App& app) {
    const std::string command = "stagehand " + app.get_name();
    const std::vector<std::string> left = app.remaining(true);
    const auto option = std::find_if(left.begin(), left.end(),
                                     [](const std::string& text) { return text.size() > 1 && text[0] == '-'; });
    std::vector<std::string> options;
    std::string positional = "no arguments besides options";
    for (const CLI::Option* known : app.get_options())
        if (known->get_positional())
            positional = "only one " + known->get_name();
        else
            options.push_back(known->get_name());
    if (option != left.end()) {
        return fmt::format("{} has no option {}; its options are {}", command, model::in_quotes(*option),
                           fmt::join(options, ", "));
    }
    return fmt::format("{} is unexpected; {} takes {}", left.empty() ? "an argument" : model::in_quotes(left.front()),
                       command, positional);
}

}  // namespace

std::string problem_of(const CLI::ParseError& error, const CLI::App& app) {
    const std::string message = error.what();
    const std::string kind = error.get_name();
    if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr) return unexpected_arguments(app);
    const CLI::Option* option = kind == "ValidationError" ? nullptr : option_in(app, message);
    if (option == nullptr) return message;
    if (kind == "RequiredError") return fmt::format("{} is required: {}", usage_of(*option), in_sentence(*option));
    if (option->get_expected_max() == 0)
        return fmt::format("{} takes no value; give {} alone or leave it out", option->get_name(), option->get_name());
    if (message.ends_with("missing")) {
        return fmt::format("{} has no value; write {}: {}", option->get_name(), usage_of(*option),
                           in_sentence(*option));
    }
    if (option->count() > 1) {
        return fmt::format("{} is given {} times ({}); give it once", option->get_name(), option->count(),
                           fmt::join(option->results(), ", "));
    }
    return fmt::format("{}: {} cannot be read; write {}: {}", option->get_name(),
                       model::in_quotes(option->count() > 0 ? option->results().front() : ""), usage_of(*option),
                       in_sentence(*option));
}

}  // namespace stagehand::cli
