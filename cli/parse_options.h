// The command line: options, their checks, and help.
#pragma once

#include <string>

#include "options.h"

namespace stagehand::cli {

class CommandLine {
public:
    enum class Outcome {
        answered,  // --help, help or --version: the answer is on standard output
        refused,   // problem() has the reason
        devices,
        plan,
        run,
        pack,
        unpack,
        report,
        bench,
        top,
        release,
        resume
    };

    Outcome parse(int argc, char** argv);

    // The subcommand of the command line; empty if there is none.
    const std::string& subcommand() const { return subcommand_; }
    const std::string& problem() const { return problem_; }

    DevicesOptions devices;
    PlanOptions plan;
    RunOptions run;
    PackOptions pack, unpack;
    ReportOptions report;
    BenchOptions bench;
    TopOptions top;
    OccupancyOptions release, resume;

private:
    std::string subcommand_;
    std::string problem_;
};

}  // namespace stagehand::cli
