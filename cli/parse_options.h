// The command line: options, their checks, and help.
#pragma once

#include <functional>
#include <string>

#include "options.h"

namespace stagehand::cli {

struct CommandLine {
    std::string subcommand;    // empty if there is none
    std::string problem;       // why it is refused; empty if it is not
    std::function<int()> run;  // does what it asks for, and returns the exit code
};

// Help and the version are printed at once, and run() only ends the output then.
CommandLine parse_command_line(int argc, char** argv);

}  // namespace stagehand::cli
