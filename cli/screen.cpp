#include "screen.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "interrupt.h"
#include "terminal.h"

namespace stagehand::cli {

namespace {

// Switches to the alternate screen, hides the cursor, and turns line wrapping off.
constexpr const char* enter = "\033[?1049h\033[?25l\033[?7l\033[2J";
constexpr const char* leave = "\033[?7h\033[?25h\033[?1049l";

}  // namespace

bool Screen::possible() {
    const char* kind = std::getenv("TERM");
    return terminal_of(stdout).is_terminal && kind != nullptr && *kind != '\0' && std::strcmp(kind, "dumb") != 0;
}

Screen::Screen() {
    keys_ = isatty(STDIN_FILENO) == 1 && tcgetattr(STDIN_FILENO, &before_) == 0;
    if (keys_) {
        termios keys = before_;
        keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
        keys.c_cc[VMIN] = 0;
        keys.c_cc[VTIME] = 0;
        keys.c_cc[VSUSP] = _POSIX_VDISABLE;  // a suspended process would leave the alternate screen on
        tcsetattr(STDIN_FILENO, TCSANOW, &keys);
    }
    print(enter);
    finish_output();
}

Screen::~Screen() {
    std::fputs(leave, stdout);
    std::fflush(stdout);
    if (keys_) tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
}

void Screen::show(const std::string& text) {
    winsize size = {};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    const std::string page = cut(text, known ? size.ws_col : 80, known ? size.ws_row : 24);
    std::string drawn = "\033[H";
    std::size_t begin = 0;
    while (begin < page.size()) {
        const std::size_t end = std::min(page.find('\n', begin), page.size());
        drawn += page.substr(begin, end - begin) + "\033[K";
        drawn += end + 1 < page.size() ? "\r\n" : "";
        begin = end + 1;
    }
    print(drawn + "\033[J");
    finish_output();
}

bool Screen::wait_for_quit(std::chrono::nanoseconds time) {
    const auto until = std::chrono::steady_clock::now() + time;
    while (wait_until(keys_ ? STDIN_FILENO : -1, POLLIN, until)) {
        char key = 0;
        if (read(STDIN_FILENO, &key, 1) != 1) {
            keys_ = false;  // the input has ended; poll() would report that without waiting
            tcsetattr(STDIN_FILENO, TCSAFLUSH, &before_);
        } else if (key == 'q' || key == 'Q')
            return true;
    }
    return false;
}

std::string cut(const std::string& text, std::size_t columns, std::size_t lines) {
    std::string result;
    std::size_t column = 0;
    std::size_t line = 0;
    bool escape = false;
    for (const char byte : text) {
        if (byte == '\n') {
            column = 0;
            if (++line == lines) break;
            result += byte;
        } else if (escape || byte == '\033') {
            // "ESC [ ... letter"
            escape = byte == '\033' || byte == '[' || !((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z'));
            result += byte;
        } else {
            const bool begins = (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
            column += begins ? 1 : 0;
            if (column <= columns) result += byte;
        }
    }
    return result;
}

}  // namespace stagehand::cli
