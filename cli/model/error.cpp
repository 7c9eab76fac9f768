// The text of a ModelError.
#include "error.h"

#include "text.h"

namespace stagehand::cli::model {

namespace {

constexpr std::size_t max_part_bytes = 2000;

std::string one_line(std::string_view file, std::string_view field, std::string_view message) {
    return printable(file, max_part_bytes) + ": " + printable(field, max_part_bytes) + ": " +
           printable(message, max_part_bytes);
}

}  // namespace

ModelError::ModelError(std::string_view file, std::string_view field, std::string_view message, int system_error)
    : std::runtime_error(one_line(file, field, message)),
      file_(printable(file, max_part_bytes)),
      field_(printable(field, max_part_bytes)),
      message_(printable(message, max_part_bytes)),
      system_error_(system_error) {}

}  // namespace stagehand::cli::model
