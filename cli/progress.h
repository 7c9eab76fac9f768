// Progress of a run: a bar on a terminal, plain lines otherwise.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "terminal.h"

namespace stagehand::cli {

enum class ProgressStyle {
    automatic,  // a bar if standard error is a terminal, else lines on standard output
    bar_only,   // a bar if standard error is a terminal, else nothing: standard output belongs to JSON
    quiet
};

class Progress {
public:
    explicit Progress(ProgressStyle style);
    // Leaves no bar behind, also when an error comes.
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // Begins a phase of `steps` steps of `parts` parts each. `name` stands before the bar.
    void begin(std::string name, std::uint64_t steps, std::uint64_t parts);
    // `part` parts of `step` (from 0) are done. Cheap: draws at most some times a second.
    void part(std::uint64_t step, std::uint64_t part);
    // `step` (from 0) is done; `what` tells how it went.
    void step(std::uint64_t step, const std::string& what);
    // Takes the bar away, so that something else can be written.
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
