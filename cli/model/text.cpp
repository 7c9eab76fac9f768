// UTF-8 by the table of well-formed byte sequences (Unicode, table 3-7): no overlong forms, no surrogates.
#include "text.h"

namespace stagehand::cli::model {

namespace {

bool is_continuation(unsigned char byte, unsigned char low = 0x80, unsigned char high = 0xbf) {
    return byte >= low && byte <= high;
}

// C0 and DEL are one byte; C1 controls (U+0080 to U+009F) control terminals too, and are C2 80 to C2 9F.
bool is_control(std::string_view character) {
    const auto first = static_cast<unsigned char>(character[0]);
    if (character.size() == 1) return first < 0x20 || first == 0x7f;
    return character.size() == 2 && first == 0xc2 && static_cast<unsigned char>(character[1]) < 0xa0;
}

}  // namespace

std::size_t utf8_character_bytes(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) -> unsigned char {
        return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
    };
    if (at >= text.size()) return 0;
    const unsigned char first = byte(0);
    if (first < 0x80) return 1;
    if (first >= 0xc2 && first <= 0xdf) return is_continuation(byte(1)) ? 2 : 0;
    if (first >= 0xe0 && first <= 0xef) {
        const unsigned char low = first == 0xe0 ? 0xa0 : 0x80;
        const unsigned char high = first == 0xed ? 0x9f : 0xbf;
        return is_continuation(byte(1), low, high) && is_continuation(byte(2)) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        const unsigned char low = first == 0xf0 ? 0x90 : 0x80;
        const unsigned char high = first == 0xf4 ? 0x8f : 0xbf;
        return is_continuation(byte(1), low, high) && is_continuation(byte(2)) && is_continuation(byte(3)) ? 4 : 0;
    }
    return 0;
}

bool is_utf8(std::string_view text) {
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t bytes = utf8_character_bytes(text, at);
        if (bytes == 0) return false;
        at += bytes;
    }
    return true;
}

std::string printable(std::string_view text, std::size_t max_bytes) {
    static constexpr char hex[] = "0123456789abcdef";
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t bytes = utf8_character_bytes(text, at);
        const std::string_view character = text.substr(at, bytes == 0 ? 1 : bytes);
        const bool escape = bytes == 0 || is_control(character);
        if (out.size() + (escape ? 4 * character.size() : character.size()) > max_bytes) return out + "...";
        if (!escape) {
            out += character;
        } else {
            for (const char c : character) {
                const auto value = static_cast<unsigned char>(c);
                out += {'\\', 'x', hex[value >> 4], hex[value & 15]};
            }
        }
        at += character.size();
    }
    return out;
}

std::string in_quotes(std::string_view text) { return "'" + printable(text) + "'"; }

}  // namespace stagehand::cli::model
