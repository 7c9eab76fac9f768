#include "telemetry/line_file.h"

#include <cstring>
#include <utility>

namespace stagehand::telemetry {

Status LineFile::open(const char* path) {
    std::string next = path ? path : "";  // may throw, so it comes before any change
    platform::OutputFile file;
    if (path)
        if (const int error = file.open(path))
            return Status(SH_ERROR_IO, std::string("telemetry ") + path + ": " + std::strerror(error));
    const int failed = file_.close();
    const std::string ended = std::exchange(path_, std::move(next));
    file_ = std::move(file);
    return failed ? Status(SH_ERROR_IO, "telemetry " + ended + ": could not be written completely") : Status();
}

Status LineFile::write(const std::string& text) {
    const int refused = file_.add(text + "\n");
    const int failed = refused ? refused : file_.flush();
    return failed ? Status(SH_ERROR_IO, "telemetry " + path_ + ": " + std::strerror(failed)) : Status();
}

}  // namespace stagehand::telemetry
