// The directories in which plugins are looked for.
#pragma once

#include <string>
#include <vector>

namespace stagehand::plugins {

struct SearchDirectory {
    std::string path;
    std::string refusal;  // why it is not looked into; empty: it is
};

// STAGEHAND_BACKEND_PATH, a list of absolute directories separated by colons, if it is set and not empty (a
// program that runs with more rights than its user does not see it). Else `spi-1` and `stagehand/spi-1`
// beside the library, and the directory of the installation. Never the current directory.
std::vector<SearchDirectory> search_directories();

// NAME of each stagehand-NAME.so there, sorted.
std::vector<std::string> names_in_search_directories();

}  // namespace stagehand::plugins
