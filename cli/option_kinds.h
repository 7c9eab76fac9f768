// Options of the kinds that several subcommands have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

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

// A flag that takes no value: `--json=false` is refused.
inline void add_flag(CLI::App* app, const std::string& flag, bool& value, const std::string& what) {
    app->add_flag(flag, value, what)->disable_flag_override();
}

}  // namespace stagehand::cli
