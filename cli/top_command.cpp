// `stagehand top`: shows repeatedly what the devices and runtimes of a running process do.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "exit_code.h"
#include "interrupt.h"
#include "options.h"
#include "process_clients.h"
#include "screen.h"
#include "terminal.h"
#include "top_sample.h"

namespace stagehand::cli {

namespace {

using Clock = std::chrono::steady_clock;

class Top {
public:
    Top(const TopOptions& options, ProcessSocket process) : options_(options), process_(std::move(process)) {
        if (!options_.once && !options_.json && Screen::possible()) screen_ = std::make_unique<Screen>();
    }

    // Runs until the process ends, a signal comes, or enough was shown. Returns the exit code.
    int watch() {
        const auto interval =
            std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.interval_seconds));
        while (true) {
            const Answer answer = ask_for_sample();
            if (answer == Answer::gone) return ended();
            if (answer != Answer::interrupted && enough_was_shown(answer)) return static_cast<int>(ExitCode::success);
            // The interval begins with the answer, however long the answer took.
            if (wait_for_quit(interval)) return static_cast<int>(ExitCode::success);
            if (interrupted() != 0) {
                screen_.reset();
                return static_cast<int>(ExitCode::signalled) + interrupted();
            }
        }
    }

private:
    Answer ask_for_sample() {
        std::string text;
        Answer answer = ask_for_snapshot(process_, text);
        if (answer == Answer::let_go) {
            // The process may have ended while it answered.
            answer = ask_for_snapshot(process_, text);
        }
        if (answer == Answer::given) {
            before_ = std::move(now_);
            before_at_ = now_at_;
            now_ = parse_sample(text, process_.description());
            now_at_ = Clock::now();
            if (before_) compare(*now_, *before_);
        } else if (answer == Answer::let_go) {
            throw CommandError(ExitCode::device, fmt::format("{} does not answer: only its own user and root may ask",
                                                             process_.description()));
        } else if (answer == Answer::none && !screen_) {
            throw CommandError(ExitCode::device, fmt::format("{} does not answer", process_.description()));
        }
        return answer;
    }

    // Shows the sample. Returns true if no further sample was asked for.
    bool enough_was_shown(Answer answer) {
        if (screen_) {
            std::string page = now_ ? top_view(terminal_of(stdout), *now_) : "";
            if (answer != Answer::given) page = fmt::format("{} does not answer\n\n{}", process_.description(), page);
            screen_->show(page);
            return false;
        }
        // Rates need two samples, so the first sample is not shown.
        if (!before_) return false;
        if (options_.json) {
            const double seconds = std::chrono::duration<double>(now_at_ - before_at_).count();
            print(to_line(with_rates(*now_, seconds)));
        } else {
            print((shown_ ? "\n" : "") + top_view(terminal_of(stdout), *now_));
        }
        finish_output();
        shown_ = true;
        return options_.once;
    }

    bool wait_for_quit(Clock::duration time) {
        if (screen_) return screen_->wait_for_quit(time);
        wait_until(-1, 0, Clock::now() + time);
        return false;
    }

    int ended() {
        const bool was_seen = shown_ || (screen_ && now_);
        screen_.reset();
        const std::string what =
            fmt::format("{} {}", process_.description(), process_.lives() ? "does not answer any more" : "has ended");
        if (!was_seen) throw CommandError(ExitCode::device, what);
        std::fprintf(stderr, "stagehand top: %s\n", what.c_str());
        return static_cast<int>(ExitCode::success);
    }

    const TopOptions& options_;
    ProcessSocket process_;
    std::unique_ptr<Screen> screen_;
    std::optional<Sample> before_, now_;
    Clock::time_point before_at_, now_at_;
    bool shown_ = false;
};

}  // namespace

int top_command(const TopOptions& options) {
    catch_interrupts();
    ProcessSocket process = find_process(options.process);
    return Top(options, std::move(process)).watch();
}

}  // namespace stagehand::cli
