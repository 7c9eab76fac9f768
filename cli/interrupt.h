// Ctrl-C asks the command to end and to report what it has measured. A second Ctrl-C kills the command.
#pragma once

namespace stagehand::cli {

// After this call the first SIGINT or SIGTERM only sets a flag, and the next one ends the process as usual. SIGINT
// stays ignored if it was ignored when the process began.
void catch_interrupts();

// The signal that came, or 0.
int interrupted();

// Throws CommandError, with the exit code of the signal, if one came.
void end_if_interrupted();

}  // namespace stagehand::cli
