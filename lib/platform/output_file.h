// OutputFile: a file, or a pipe, that the library writes text to. No write raises a signal.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "platform/descriptor.h"

namespace stagehand::platform {

// Functions return 0, or the number of the system's error. Not thread-safe.
class OutputFile {
public:
    OutputFile() = default;
    ~OutputFile() { (void)close(); }
    OutputFile(OutputFile&&) = default;
    OutputFile& operator=(OutputFile&& other) noexcept {
        (void)close();
        file_ = std::move(other.file_);
        added_ = std::move(other.added_);
        return *this;
    }

    // Creates or truncates the file. Nothing is open before.
    int open(const char* path);
    bool is_open() const { return file_.is_open(); }
    // Adds a text, which is written with a later one. A text that finds no room because writes fail is left out whole.
    int add(std::string_view text);
    // Writes what was added. What is left after an error is written the next time.
    int flush() noexcept;
    // Writes what was added, and closes the file also after an error.
    int close() noexcept;
    // For the child of a fork: what was added is for the parent to write.
    void abandon() noexcept;

private:
    Descriptor file_;
    std::string added_;
};

}  // namespace stagehand::platform
