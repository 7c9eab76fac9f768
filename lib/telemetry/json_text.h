// JsonText: JSON as the library writes it: on one line, members in the order in which they are given.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace stagehand::telemetry {

// What is begun is ended by the caller. Text and nothing else, so that what finds no memory half way needs none to be taken apart.
class JsonText {
public:
    // `name` null: the document itself, or an element of an array.
    JsonText& begin_object(const char* name = nullptr) { return begin(name, '{'); }
    JsonText& end_object() { return end('}'); }
    JsonText& begin_array(const char* name) { return begin(name, '['); }
    JsonText& end_array() { return end(']'); }

    // Texts come from engines and need not be UTF-8: what is not is replaced.
    JsonText& add(const char* name, std::string_view text);
    JsonText& add(const char* name, const char* text) { return add(name, std::string_view(text)); }
    JsonText& add(const char* name, double number);
    JsonText& add(const char* name, std::integral auto value) {
        if constexpr (std::same_as<decltype(value), bool>) return add_plain(name, value ? "true" : "false");
        else return add_plain(name, std::to_string(value));
    }
    JsonText& add_null(const char* name) { return add_plain(name, "null"); }

    const std::string& text() const { return text_; }

private:
    JsonText& begin(const char* name, char bracket);
    JsonText& end(char bracket);
    JsonText& add_plain(const char* name, std::string_view value);
    void add_name(const char* name);
    void add_text(std::string_view text);

    std::string text_;
    bool first_ = true;   // of its object or array
};

}  // namespace stagehand::telemetry
