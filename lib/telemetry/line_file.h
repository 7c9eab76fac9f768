// LineFile: a file that gets one line of JSON for each step.
#pragma once

#include <string>

#include "base/status.h"
#include "platform/output_file.h"

namespace stagehand::telemetry {

// Not thread-safe.
class LineFile {
public:
    // One file at a time.
    Status start(const char* path);
    Status stop();
    bool is_open() const { return file_.is_open(); }
    // Writes the text and a newline. Each line is flushed, so that a reader of the file sees whole steps, also after a
    // crash.
    Status write(const std::string& text);

private:
    platform::OutputFile file_;
    std::string path_;
};

}  // namespace stagehand::telemetry
