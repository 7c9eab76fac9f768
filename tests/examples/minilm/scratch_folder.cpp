// A folder for one test.
#include "scratch_folder.h"

#include <cstdlib>
#include <fstream>
#include <stdexcept>

ScratchFolder::ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "minilm-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("no folder for the test: " + name);
    path_ = name;
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

std::string ScratchFolder::path(std::string_view name) const { return (name.empty() ? path_ : path_ / name).string(); }

std::string ScratchFolder::write(std::string_view name, std::string_view contents) const {
    const std::filesystem::path file = path_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary).write(contents.data(), static_cast<std::streamsize>(contents.size()));
    return file.string();
}
