// Failures of the codec, as errors of the command.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "base/status.h"
#include "exit_code.h"
#include "model/error.h"
#include "model/text.h"

namespace stagehand::cli {

// `what` is the part of the file. A lack of memory is no fault of the model.
inline void check_codec_of(const Status& status, const std::string& path, const std::string& what) {
    if (status.code() == SH_ERROR_OUT_OF_HOST_MEMORY) throw CommandError(ExitCode::device, status.text());
    if (!status.ok()) throw model::ModelError(path, what, status.text());
}

inline void check_codec(const Status& status, const std::string& path, std::string_view tensor) {
    check_codec_of(status, path, fmt::format("tensor {}", model::in_quotes(tensor)));
}

// Of the tensor whose bytes begin there in the file.
inline void check_codec(const Status& status, const std::string& path, std::uint64_t offset) {
    check_codec_of(status, path, fmt::format("packed tensor at byte {}", offset));
}

}  // namespace stagehand::cli
