#include "progress.h"

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "table.h"

namespace stagehand::cli {

namespace {

constexpr auto redraw_every = std::chrono::milliseconds(80);
// Of a long run about this many steps get a line.
constexpr std::uint64_t most_lines = 20;

}  // namespace

Progress::Progress(ProgressStyle style) : terminal_(terminal_of(stderr)) {
    const bool terminal = terminal_.is_terminal && terminal_.colour;
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
    if (bar_ && std::chrono::steady_clock::now() - drawn_at_ >= redraw_every) {
        draw(step, part);
    }
}

void Progress::step(std::uint64_t step, const std::string& what) {
    last_ = what;
    if (bar_) {
        part(step + 1, 0);
    }
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
    const double done =
        steps_ == 0 ? 1
                    : (static_cast<double>(step) + static_cast<double>(part) / static_cast<double>(parts_)) /
                          static_cast<double>(steps_);
    const std::string before = fmt::format("{} ", name_);
    const std::string after = fmt::format(" {}/{}  {}", std::min(step + 1, steps_), steps_, last_);
    const auto text = static_cast<int>(display_width(before) + display_width(after));
    const int width = std::clamp(terminal_.columns - 1 - text, 8, 40);
    const int filled = static_cast<int>(std::clamp(done, 0.0, 1.0) * width);
    std::string bar;
    for (int i = 0; i < width; ++i) {
        bar += i < filled ? "█" : "·";
    }
    const std::string line =
        shortened(before + bar + after, static_cast<std::size_t>(std::max(terminal_.columns - 1, 20)));
    std::fputs(("\r" + legible(terminal_, line) + "\033[K").c_str(), stderr);
    std::fflush(stderr);
    drawn_ = true;
    drawn_at_ = std::chrono::steady_clock::now();
}

}  // namespace stagehand::cli
