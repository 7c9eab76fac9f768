// LineFile: a file that gets one line of JSON for each step.
#pragma once

#include <cstdio>
#include <string>

#include "base/status.h"

namespace stagehand::telemetry {

// Not thread-safe.
class LineFile {
public:
    LineFile() = default;
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    // Begins a file. NULL ends the current file.
    Status open(const char* path);
    bool is_open() const { return file_ != nullptr; }
    // Writes the text and a newline. Each line is flushed, so that a reader of the file sees whole steps, also after a
    // crash.
    Status write(const std::string& text);

private:
    std::FILE* file_ = nullptr;
    std::string path_;
};

}  // namespace stagehand::telemetry
