#include "telemetry/line_file.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace stagehand::telemetry {

LineFile::~LineFile() {
    if (file_) std::fclose(file_);
}

Status LineFile::open(const char* path) {
    std::string next = path ? path : "";  // may throw, so it comes before any change
    std::FILE* file = nullptr;
    if (path) {
        file = std::fopen(path, "we");
        if (!file) return Status(SH_ERROR_IO, std::string("telemetry ") + path + ": " + std::strerror(errno));
    }
    const bool failed = file_ && std::fclose(file_) != 0;
    const std::string ended = std::exchange(path_, std::move(next));
    file_ = file;
    return failed ? Status(SH_ERROR_IO, "telemetry " + ended + ": could not be written completely") : Status();
}

Status LineFile::write(const std::string& text) {
    if (std::fputs((text + "\n").c_str(), file_) < 0 || std::fflush(file_) != 0)
        return Status(SH_ERROR_IO, "telemetry " + path_ + ": " + std::strerror(errno));
    return Status();
}

}  // namespace stagehand::telemetry
