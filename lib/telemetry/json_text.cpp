#include "telemetry/json_text.h"

#include <charconv>
#include <cmath>

namespace stagehand::telemetry {
namespace {

// Returns the number of bytes of the UTF-8 character at the beginning of the text. Returns 0 if the bytes are no
// character: `out_wrong` is the number of these bytes.
size_t character(std::string_view text, size_t* out_wrong) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
    const unsigned char lead = byte(0);
    *out_wrong = 1;
    if (lead < 0x80) return 1;
    const size_t length = lead >= 0xc2 && lead <= 0xdf   ? 2
                          : lead >= 0xe0 && lead <= 0xef ? 3
                          : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                         : 0;
    if (!length) return 0;
    for (size_t i = 1; i < length; i++, ++*out_wrong) {
        // These bounds exclude overlong forms, surrogates and values beyond the last character.
        const unsigned char least = i > 1 ? 0x80 : lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
        const unsigned char most = i > 1 ? 0xbf : lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
        if (byte(i) < least || byte(i) > most) return 0;
    }
    return length;
}

}  // namespace

void JsonText::add_text(std::string_view text) {
    constexpr char kDigits[] = "0123456789abcdef";
    text_ += '"';
    while (!text.empty()) {
        size_t wrong = 0;
        size_t bytes = character(text, &wrong);
        const char first = text[0];
        if (!bytes) {
            text_ += "\xef\xbf\xbd";  // U+FFFD
            bytes = wrong;
        } else if (first == '"' || first == '\\') {
            (text_ += '\\') += first;
        } else if (static_cast<unsigned char>(first) < 0x20) {
            ((text_ += "\\u00") += kDigits[first >> 4]) += kDigits[first & 15];
        } else {
            text_ += text.substr(0, bytes);
        }
        text.remove_prefix(bytes);
    }
    text_ += '"';
}

void JsonText::add_name(const char* name) {
    if (!first_) text_ += ',';
    first_ = false;
    if (!name) return;
    add_text(name);
    text_ += ':';
}

JsonText& JsonText::begin(const char* name, char bracket) {
    add_name(name);
    text_ += bracket;
    first_ = true;
    return *this;
}

JsonText& JsonText::end(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
}

JsonText& JsonText::add_plain(const char* name, std::string_view value) {
    add_name(name);
    text_ += value;
    return *this;
}

JsonText& JsonText::add(const char* name, std::string_view text) {
    add_name(name);
    add_text(text);
    return *this;
}

// Writes the shortest digits that give the same number back.
JsonText& JsonText::add(const char* name, double number) {
    if (!std::isfinite(number)) return add_null(name);
    char digits[32];
    const auto written = std::to_chars(digits, digits + sizeof digits, number);
    return add_plain(name, std::string_view(digits, static_cast<size_t>(written.ptr - digits)));
}

}  // namespace stagehand::telemetry
