// Ctrl-C: asks the command to end with what it has measured. A second one kills it.
#pragma once

namespace stagehand::cli {

// From now on SIGINT and SIGTERM only set a flag, once; the next one ends the process as usual. SIGINT stays
// ignored if it was ignored when the process began.
void catch_interrupts();

// The signal that came, or 0.
int interrupted();

}  // namespace stagehand::cli
