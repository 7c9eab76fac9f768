#include "progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "table.h"

namespace stagehand::cli {

namespace {

constexpr auto redraw_every = std::chrono::milliseconds(80);
// A phase with more steps than this prints a line only every few steps.
constexpr std::uint64_t most_lines = 20;
constexpr std::size_t widest_bar = 40;
constexpr std::size_t narrowest_bar = 8;

// `what` without its last parts, which are the least important, until it fits into `width` columns. Commas separate the
// parts. Nothing if not even the first part fits.
std::string leading_parts(std::string what, std::size_t width) {
    while (display_width(what) > width) {
        const std::size_t comma = what.rfind(", ");
        if (comma == std::string::npos) return {};
        what.erase(comma);
    }
    return what;
}

}  // namespace

Progress::Progress(ProgressStyle style) : terminal_(terminal_of(stderr)) {
    const bool terminal = terminal_.redraws;
    bar_ = style != ProgressStyle::quiet && terminal;
    lines_ = style == ProgressStyle::automatic && !terminal;
}

Progress::~Progress() { clear(); }

void Progress::begin(std::string name, std::uint64_t steps, std::uint64_t parts) {
    clear();
    name_ = std::move(name);
    last_.clear();
    steps_ = steps;
    parts_ = std::max<std::uint64_t>(parts, 1);
    drawn_at_ = {};
}

void Progress::part(std::uint64_t step, std::uint64_t part) {
    if (bar_ && std::chrono::steady_clock::now() - drawn_at_ >= redraw_every) draw(step, part);
}

void Progress::step(std::uint64_t step, const std::string& what) {
    last_ = what;
    if (bar_) part(step + 1, 0);
    if (lines_) {
        const std::uint64_t every = (steps_ + most_lines - 1) / most_lines;
        if (step == 0 || step + 1 == steps_ || (step + 1) % every == 0) {
            const auto width = std::to_string(steps_).size();
            print(fmt::format("{} {:>{}}/{}  {}\n", name_, step + 1, width, steps_, what));
            finish_output();
        }
    }
}

void Progress::clear() {
    if (drawn_) {
        std::fputs("\r\033[K", stderr);
        std::fflush(stderr);
        drawn_ = false;
    }
}

void Progress::draw(std::uint64_t step, std::uint64_t part) {
    const double done = steps_ == 0
                            ? 1
                            : (static_cast<double>(step) + static_cast<double>(part) / static_cast<double>(parts_)) /
                                  static_cast<double>(steps_);
    // The window may have been resized. Its last column stays free, because some terminals wrap there.
    const auto columns = static_cast<std::size_t>(std::max(terminal_of(stderr).columns - 1, 1));
    // On a narrow terminal the bar shrinks first. Then the parts of what the last step reported go, then the bar, then
    // the name. The step count stays.
    const std::string count = fmt::format("{}/{}", std::min(step + 1, steps_), steps_);
    std::string name = name_ + " ";
    std::string what;
    std::size_t used = display_width(name) + display_width(count);
    const std::size_t narrow = used + narrowest_bar + 1;
    if (!last_.empty() && narrow + 2 < columns) what = leading_parts(last_, columns - narrow - 2);
    if (!what.empty()) {
        what.insert(0, "  ");
        used += display_width(what);
    }
    if (used > columns) {
        name.clear();
        used = display_width(count);
    }
    std::string bar;
    if (columns >= used + narrowest_bar + 1) {
        const std::size_t width = std::min(columns - used - 1, widest_bar);
        const auto filled = static_cast<std::size_t>(std::clamp(done, 0.0, 1.0) * static_cast<double>(width));
        for (std::size_t i = 0; i < width; ++i) bar += i < filled ? "█" : "·";
        bar += " ";
    }
    const std::string line = name + bar + count + what;
    std::fputs(("\r" + legible(terminal_, line) + "\033[K").c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
    drawn_at_ = std::chrono::steady_clock::now();
}

}  // namespace stagehand::cli
