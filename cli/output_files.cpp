#include "output_files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

// Devices and pipes lose nothing. Files that are not there yet are one file if their paths say so.
bool is_one_file(const std::string& one, const std::string& other) {
    std::error_code ignored;
    const bool there = std::filesystem::exists(one, ignored);
    if (there && !std::filesystem::is_regular_file(one, ignored)) return false;
    return there ? std::filesystem::equivalent(one, other, ignored)
                 : std::filesystem::absolute(one, ignored).lexically_normal() ==
                       std::filesystem::absolute(other, ignored).lexically_normal();
}

std::string name_of(const OutputFile& output) {
    return fmt::format("{}{}", output.option, model::printable(output.path));
}

}  // namespace

void check_outputs(std::initializer_list<OutputFile> outputs, const std::vector<std::string>& inputs) {
    for (const OutputFile* output = outputs.begin(); output != outputs.end(); ++output) {
        if (output->path.empty()) continue;
        for (const std::string& input : inputs) {
            if (is_one_file(output->path, input)) {
                throw CommandError(ExitCode::usage, fmt::format("{} would replace {}, which this command reads",
                                                                name_of(*output), model::printable(input)));
            }
        }
        for (const OutputFile* before = outputs.begin(); before != output; ++before) {
            if (!before->path.empty() && is_one_file(output->path, before->path)) {
                throw CommandError(ExitCode::usage,
                                   fmt::format("{} would replace {}", name_of(*output), name_of(*before)));
            }
        }
    }
}

void write_file(const OutputFile& output, const std::string& text) {
    const auto fail = [&](int error) {
        throw CommandError(ExitCode::output, fmt::format("{}: {}", name_of(output), std::strerror(error)));
    };
    std::FILE* const file = std::fopen(output.path.c_str(), "we");
    if (file == nullptr) fail(errno);
    const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
    const int error = errno;
    if (std::fclose(file) != 0 || !written) fail(written ? errno : error);
}

}  // namespace stagehand::cli
