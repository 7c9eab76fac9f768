// Options of the kinds that several subcommands have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "base/number.h"
#include "model/quantity.h"
#include "model/text.h"

namespace stagehand::cli {

// `text` as one line for a message, whatever characters the command line holds.
inline std::string one_line(std::string_view text) { return model::printable(text, 400); }

// An option whose value `parse` reads. A QuantityError becomes the parser's error, with the name of the option.
template <typename Parse>
CLI::Option* add_quantity(CLI::App* app, const std::string& flag, const std::string& what, const char* type,
                          Parse parse) {
    return app
        ->add_option_function<std::string>(
            flag,
            [flag, parse](const std::string& text) {
                try {
                    parse(text);
                } catch (const model::QuantityError& error) {
                    throw CLI::ValidationError(flag, one_line(error.what()));
                }
            },
            what)
        ->type_name(type);
}

// An option that takes a decimal number from `least` to `largest`. The parser alone would also take 0x10 and blanks,
// and 010 for 8. `called` is the end of "'x' is not ...".
template <typename Number>
CLI::Option* add_number(CLI::App* app, const std::string& flag, Number& value, Number least, Number largest,
                        const std::string& called, const std::string& what, const char* type) {
    return add_quantity(app, flag, what, type, [&value, least, largest, called](const std::string& text) {
        const auto number = read_number<Number>(text);
        if (!number || !(*number >= least && *number <= largest))
            throw model::QuantityError(fmt::format("{} is not {}", model::in_quotes(text), called));
        value = *number;
    });
}

// A flag that takes no value: `--json=false` is refused.
inline void add_flag(CLI::App* app, const std::string& flag, bool& value, const std::string& what) {
    app->add_flag(flag, value, what)->disable_flag_override();
}

}  // namespace stagehand::cli
