// Lists the directories that are searched for plugins.
#pragma once

#include <string>
#include <vector>

namespace stagehand::plugins {

struct SearchDirectory {
    std::string path;
    std::string refusal;  // why the directory is not searched; empty if it is searched
};

// Returns the directories of STAGEHAND_BACKEND_PATH, a list separated by colons, if it is set and not empty. A program
// that runs with more rights than its user ignores the variable. Otherwise returns `spi-1` and `stagehand/spi-1` beside
// the library, and the directory of the installation. A path that is not absolute is returned with a refusal, so the
// current directory is never searched.
std::vector<SearchDirectory> search_directories();

// Returns NAME of each file stagehand-NAME.so in these directories, sorted.
std::vector<std::string> names_in_search_directories();

}  // namespace stagehand::plugins
