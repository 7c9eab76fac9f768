// UTF-8 checks, and text from files in a form that is safe for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace stagehand::cli::model {

// Bytes of the well-formed UTF-8 character that begins at `at` (1 to 4), or 0 if none does.
std::size_t utf8_character_bytes(std::string_view text, std::size_t at);

bool is_utf8(std::string_view text);

// `text` for a message: control characters and bytes that are not UTF-8 as \xNN, and at most about
// `max_bytes` bytes of it, followed by "..." if something was left out.
std::string printable(std::string_view text, std::size_t max_bytes = 160);

// printable() between single quotes.
std::string in_quotes(std::string_view text);

}  // namespace stagehand::cli::model
