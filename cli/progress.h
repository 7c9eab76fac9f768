// Shows the progress of a run: a bar on a terminal, plain lines otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "terminal.h"

namespace stagehand::cli {

enum class ProgressStyle {
    automatic,  // a bar if standard error is a terminal, otherwise lines on standard output
    bar_only,   // a bar if standard error is a terminal, otherwise nothing, because standard output is for JSON
    quiet
};

class Progress {
public:
    explicit Progress(ProgressStyle style);
    // Removes the bar, also after an error.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // Begins a phase of `steps` steps, each of `parts` parts. `name` is shown before the bar.
    void begin(std::string name, std::uint64_t steps, std::uint64_t parts);
    // `part` parts of `step` (from 0) are done. Cheap, because it draws at most a few times per second.
    void part(std::uint64_t step, std::uint64_t part);
    // `step` (from 0) is done. `what` reports the result: parts with ", " between them, the most important part first.
    void step(std::uint64_t step, const std::string& what);
    // Removes the bar, so that something else can be written.
    void clear();

private:
    void draw(std::uint64_t step, std::uint64_t part);

    Terminal terminal_;
    bool bar_ = false;
    bool lines_ = false;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point drawn_at_;
    std::string name_;
    std::string last_;
    std::uint64_t steps_ = 0;
    std::uint64_t parts_ = 0;
};

}  // namespace stagehand::cli
