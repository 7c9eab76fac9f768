// What can be shown where: whether a stream is a terminal, how wide it is, and whether it takes more than
// ASCII.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace stagehand::cli {

// How to write to one of the standard streams.
struct Terminal {
    bool is_terminal = false;
    bool colour = false;   // a terminal that is not dumb, and NO_COLOR is not set
    bool unicode = false;  // the locale's characters are UTF-8
    int columns = 80;
};

Terminal terminal_of(std::FILE* stream);

enum class Ink {
    plain,
    bold,
    dim,
    good,
    bad
};

// `text` with the escape codes for `ink`, if the terminal has colours.
std::string inked(const Terminal& terminal, Ink ink, std::string_view text);

// `text` with the few signs that the command uses beyond ASCII written in ASCII, if the terminal needs that.
std::string legible(const Terminal& terminal, std::string_view text);

// Writes to standard output, all of it, or throws CommandError.
void print(std::string_view text);

// Completes standard output, or throws CommandError.
void finish_output();

}  // namespace stagehand::cli
