// The one exception that reading and grouping a model throws.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "text.h"

namespace stagehand::cli::model {

// An error in a model file, with the file, the field and the message. what() is
// "file: field: message" on one line, free of control characters whatever the file holds; file(), field()
// and message() are its parts. The command turns it into a message and an exit code.
//
// The readers in cli/model throw only this and, if memory runs out, std::bad_alloc.
class ModelError : public std::runtime_error {
public:
    // `system_error` is the number of the system (errno) if the system refused the file, and 0 otherwise.
    ModelError(std::string_view file, std::string_view field, std::string_view message, int system_error = 0)
        : std::runtime_error(part(file) + ": " + part(field) + ": " + part(message)),
          file_(part(file)),
          field_(part(field)),
          message_(part(message)),
          system_error_(system_error) {}

    const std::string& file() const noexcept { return file_; }
    // For example "header length" or "tensor 'lm_head.weight': data_offsets". Never empty.
    const std::string& field() const noexcept { return field_; }
    const std::string& message() const noexcept { return message_; }
    int system_error() const noexcept { return system_error_; }

private:
    static std::string part(std::string_view text) { return printable(text, 2000); }

    std::string file_;
    std::string field_;
    std::string message_;
    int system_error_ = 0;
};

}  // namespace stagehand::cli::model
