// Ctrl-C asks the command to end and to report what it has measured. A second Ctrl-C kills the command.
#pragma once

#include <chrono>

namespace stagehand::cli {

// After this call the first SIGINT or SIGTERM only sets a flag, and the next one ends the process as usual. SIGINT
// stays ignored if it was ignored when the process began.
void catch_interrupts();

// The signal that came, or 0.
int interrupted();

// Waits until there is something to read or to write, as `events` say for poll(), at most until then. Returns false if
// the time is up or a signal came. A negative descriptor only waits.
bool wait_until(int descriptor, short events, std::chrono::steady_clock::time_point until);

// Throws CommandError, with the exit code of the signal, if one came.
void end_if_interrupted();

}  // namespace stagehand::cli
