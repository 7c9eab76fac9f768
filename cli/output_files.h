// Files that a command writes.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace stagehand::cli {

struct OutputFile {
    std::string_view option;  // that names it, and a blank; empty: none
    const std::string& path;  // empty: there is no such file
};

// Throws a CommandError if the command reads one of the files, or writes one twice: it would be lost.
void check_outputs(std::initializer_list<OutputFile> outputs, const std::vector<std::string>& inputs);

// Creates or replaces the file. Throws a CommandError if that fails.
void write_file(const OutputFile& output, const std::string& text);

}  // namespace stagehand::cli
