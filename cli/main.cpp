// The stagehand command: parses the command line, and turns each error into one line and an exit code.
#include <csignal>
#include <cstdio>
#include <exception>
#include <functional>
#include <new>
#include <string>

#include <fcntl.h>
#include <fmt/format.h>
#include <stagehand/stagehand.h>
#include <CLI/CLI.hpp>

#include "exit_code.h"
#include "model/error.h"
#include "model/quantity.h"
#include "model/text.h"
#include "options.h"
#include "parse_options.h"
#include "terminal.h"

namespace {

using namespace stagehand::cli;

// Prints the error. A failure to write to standard error is ignored: the exit code then reports the error alone.
int report(ExitCode code, std::string_view where, std::string_view message) {
    const std::string line = fmt::format("stagehand{}{}: error: {}\n", where.empty() ? "" : " ", where, message);
    std::fwrite(line.data(), 1, line.size(), stderr);
    return static_cast<int>(code);
}

// If the caller has closed a standard stream, the next file that is opened would get its number: the model, or the
// memory of a device. /dev/null takes its place: not writable as standard output, so that output fails, but writable as
// standard error.
void occupy_standard_streams() {
    for (const int stream : {0, 1, 2})
        if (fcntl(stream, F_GETFD) == -1) (void)open("/dev/null", stream == 2 ? O_WRONLY : O_RDONLY);
}

// Runs a subcommand and returns the exit code. Subcommands write their results at the end, so that after an error
// standard output holds no part of them.
int guarded(const std::string& name, const std::function<int()>& command) {
    try {
        return command();
    } catch (const CommandError& error) {
        return report(error.code(), name, error.what());
    } catch (const model::ModelError& error) {
        return report(ExitCode::model, name, error.what());
    } catch (const model::QuantityError& error) {
        return report(ExitCode::usage, name, error.what());
    } catch (const std::bad_alloc&) {
        return report(ExitCode::device, name, "out of memory");
    } catch (const std::exception& error) {
        return report(ExitCode::failure, name, error.what());
    }
}

}  // namespace

int main(int argc, char** argv) {
    occupy_standard_streams();
    // If the reader of a pipe has gone, or a file may not grow, writing fails with an error, like on a full disk.
    std::signal(SIGPIPE, SIG_IGN);
    std::signal(SIGXFSZ, SIG_IGN);
    const CommandLine line = parse_command_line(argc, argv);
    return line.problem.empty() ? guarded(line.subcommand, line.run)
                                : report(ExitCode::usage, line.subcommand, line.problem);
}
