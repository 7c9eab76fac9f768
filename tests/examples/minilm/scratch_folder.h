// A folder for one test. It is removed with everything in it.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

class ScratchFolder {
public:
    ScratchFolder();
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;

    std::string path(std::string_view name = {}) const;

    // Writes a file, and the folders on the way to it.
    std::string write(std::string_view name, std::string_view contents) const;

private:
    std::filesystem::path path_;
};
