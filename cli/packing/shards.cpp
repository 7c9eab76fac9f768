#include "packing/shards.h"

#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "exit_code.h"
#include "model/read_model.h"
#include "model/text.h"

namespace stagehand::cli {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_output(const std::string& path, const std::error_code& error) {
    throw CommandError(ExitCode::output, fmt::format("{}: {}", model::printable(path), error.message()));
}

}  // namespace

Shards::Shards(const std::string& model, const std::string& output) {
    const model::Model found = model::read_model(model, {});
    if (found.index.empty() || found.files.size() == 1) {
        files_.push_back({found.files.front().path, output});
        return;
    }
    const fs::path folder = fs::path(found.index).parent_path();
    std::error_code error;
    if (fs::equivalent(folder.empty() ? fs::path(".") : folder, output, error))
        throw CommandError(ExitCode::usage, fmt::format("{} is the folder of the model", model::printable(output)));
    if (fs::exists(output, error) && !fs::is_directory(output, error)) {
        throw CommandError(ExitCode::usage, fmt::format("{} is no folder, and the model has {} files",
                                                        model::printable(output), found.files.size()));
    }
    for (const model::ModelFile& file : found.files)
        files_.push_back({file.path, (output / fs::path(file.path).lexically_relative(folder)).string()});
    index_ = {found.index, (output / fs::path(found.index).filename()).string()};
}

void Shards::begin() const {
    if (index_.from.empty()) return;
    std::error_code error;
    for (const Shard& file : files_) {
        const std::string folder = fs::path(file.to).parent_path().string();
        if (fs::create_directories(folder, error); error) fail_output(folder, error);
    }
    if (fs::remove(index_.to, error); error) fail_output(index_.to, error);
}

void Shards::finish() const {
    if (index_.from.empty()) return;
    std::error_code error;
    if (fs::copy_file(index_.from, index_.to, fs::copy_options::overwrite_existing, error); error)
        fail_output(index_.to, error);
}

}  // namespace stagehand::cli
