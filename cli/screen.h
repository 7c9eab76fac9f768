// A terminal whose page is redrawn repeatedly. It uses the alternate screen and restores the terminal at the end.
#pragma once

#include <chrono>
#include <string>

#include <termios.h>

namespace stagehand::cli {

class Screen {
public:
    // Whether standard output is a terminal that can be redrawn.
    static bool possible();

    Screen();
    // Restores the terminal, also after an error.
    ~Screen();
    Screen(const Screen&) = delete;
    Screen& operator=(const Screen&) = delete;

    // Shows the lines of the text from the top. Text that does not fit is cut off.
    void show(const std::string& text);
    // Waits for this time, or until a signal comes (see interrupt.h). Returns true if the key q was pressed.
    bool wait_for_quit(std::chrono::nanoseconds time);

private:
    bool keys_ = false;  // standard input is a terminal that reports each key
    termios before_ = {};
};

// At most `rows` lines of `text`, each cut to `columns` columns. Escape codes have no width and are never cut off, so
// that colours end.
std::string cut(const std::string& text, std::size_t columns, std::size_t lines);

}  // namespace stagehand::cli
