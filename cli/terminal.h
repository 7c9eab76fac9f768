// What a standard stream can show: whether it is a terminal, its width, and whether it takes more than ASCII.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

namespace stagehand::cli {

// How to write to one of the standard streams.
struct Terminal {
    bool is_terminal = false;
    bool redraws = false;  // a terminal that takes control sequences: TERM is set, and is not "dumb"
    bool colour = false;   // it takes control sequences, and NO_COLOR is not set
    bool unicode = false;  // the locale's characters are UTF-8
    int columns = 80;
};

Terminal terminal_of(std::FILE* stream);

enum class Ink { plain, bold, dim, good, bad };

// `text` with the escape codes for `ink` if the terminal shows colours.
std::string inked(const Terminal& terminal, Ink ink, std::string_view text);

// `text`, in which the characters that are not ASCII are replaced by ASCII if the terminal does not show them.
std::string legible(const Terminal& terminal, std::string_view text);

// Writes the whole text to standard output. Throws CommandError if that fails.
void print(std::string_view text);

// Flushes standard output. Throws CommandError if that fails, or if an earlier write failed.
void finish_output();

}  // namespace stagehand::cli
