// A terminal that is drawn over and over: a page of its own, given back as it was.
#pragma once

#include <chrono>
#include <string>

#include <termios.h>

namespace stagehand::cli {

class Screen {
public:
    // Whether standard output is a terminal that can do it.
    static bool possible();

    Screen();
    // Leaves nothing behind, also when an error comes.
    ~Screen();
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;

    // Shows the text's lines from the top on; what has no room is cut off.
    void show(const std::string& text);
    // Waits so long, or until a signal comes, see interrupt.h; true: the key q was pressed.
    bool wait_for_quit(std::chrono::nanoseconds time);

private:
    bool keys_ = false;  // standard input is a terminal, and tells each key
    termios before_ = {};
};

// `text` with each line cut to so many columns and no more than so many lines. Escape codes take no room and are
// never cut off, so that colours end.
std::string cut(const std::string& text, std::size_t columns, std::size_t lines);

}  // namespace stagehand::cli
