// The exit codes of the command. They are part of its interface: stagehand.1 and docs/command.md list them.
#pragma once

#include <stdexcept>
#include <string>

namespace stagehand::cli {

enum class ExitCode {
    success = 0,
    failure = 1,      // bytes differ from the file, a step failed, or a process refused
    usage = 2,        // the command line is wrong
    model = 3,        // the model cannot be read, or changed while it was read
    device = 4,       // no such device, the device does not work, or the budget or memory does not suffice
    output = 5,       // an output file, or standard output, could not be written
    signalled = 128,  // plus the signal's number: 130 after Ctrl-C
};

// Ends the command with a one-line message on standard error.
class CommandError : public std::runtime_error {
public:
    CommandError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}

    ExitCode code() const noexcept { return code_; }

private:
    ExitCode code_;
};

}  // namespace stagehand::cli
