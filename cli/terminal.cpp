#include "terminal.h"

#include <array>
#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <langinfo.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "exit_code.h"

namespace stagehand::cli {

namespace {

bool locale_is_utf8() {
    // Only the category of characters is set, because numbers must keep their decimal point.
    static const bool utf8 = std::setlocale(LC_CTYPE, "") != nullptr && std::strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
    return utf8;
}

[[noreturn]] void output_failed() {
    throw CommandError(ExitCode::output, fmt::format("standard output: {}", std::strerror(errno)));
}

}  // namespace

Terminal terminal_of(std::FILE* stream) {
    Terminal terminal;
    const int file = fileno(stream);
    terminal.is_terminal = isatty(file) == 1;
    // Files and pipes get UTF-8 in every locale.
    terminal.unicode = !terminal.is_terminal || locale_is_utf8();
    if (terminal.is_terminal) {
        const char* kind = std::getenv("TERM");
        const char* no_colour = std::getenv("NO_COLOR");
        terminal.redraws = kind != nullptr && std::strcmp(kind, "dumb") != 0;
        terminal.colour = terminal.redraws && (no_colour == nullptr || *no_colour == '\0');
        winsize size = {};
        if (ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) terminal.columns = size.ws_col;
    }
    return terminal;
}

std::string inked(const Terminal& terminal, Ink ink, std::string_view text) {
    if (!terminal.colour || ink == Ink::plain) return std::string(text);
    constexpr std::array codes{"", "1", "2", "32", "31;1"};
    return fmt::format("\033[{}m{}\033[0m", codes[static_cast<std::size_t>(ink)], text);
}

std::string legible(const Terminal& terminal, std::string_view text) {
    std::string result(text);
    if (terminal.unicode) return result;
    // Each replacement has the same width, so that tables stay aligned.
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 7> signs = {{
        {"×", "x"},
        {"µ", "u"},
        {"−", "-"},
        {"─", "-"},
        {"…", "~"},
        {"█", "#"},
        {"·", "."},
    }};
    for (const auto& [from, to] : signs)
        for (std::size_t at = result.find(from); at != std::string::npos; at = result.find(from, at + 1))
            result.replace(at, from.size(), to);
    return result;
}

void print(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_failed();
}

void finish_output() {
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) output_failed();
}

}  // namespace stagehand::cli
