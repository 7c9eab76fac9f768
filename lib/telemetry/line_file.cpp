#include "telemetry/line_file.h"

#include <cstring>
#include <utility>

namespace stagehand::telemetry {

Status LineFile::start(const char* path) {
    if (file_.is_open())
        return Status(SH_ERROR_INVALID_STATE, "telemetry goes to " + path_ + " already, until its scope ends");
    std::string name = path;  // may throw, so it comes before any change
    if (const int error = file_.open(path))
        return Status(SH_ERROR_IO, "telemetry " + name + ": " + std::strerror(error));
    path_ = std::move(name);
    return Status();
}

Status LineFile::stop() {
    if (file_.close() == 0) return Status();
    return Status(SH_ERROR_IO, "telemetry " + path_ + ": could not be written completely");
}

Status LineFile::write(const std::string& text) {
    const int refused = file_.add(text + "\n");
    const int failed = refused ? refused : file_.flush();
    return failed ? Status(SH_ERROR_IO, "telemetry " + path_ + ": " + std::strerror(failed)) : Status();
}

}  // namespace stagehand::telemetry
