// JsonText: writes JSON on one line. Members keep the order in which they are added.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace stagehand::telemetry {

// The caller ends what it began. The class holds only the text, so that it needs no cleanup if memory runs out half
// way.
class JsonText {
public:
    // `name` is null for the document itself and for an element of an array.
    JsonText& begin_object(const char* name = nullptr) { return begin(name, '{'); }
    JsonText& end_object() { return end('}'); }
    JsonText& begin_array(const char* name) { return begin(name, '['); }
    JsonText& end_array() { return end(']'); }

    // Texts come from engines and need not be UTF-8. Bytes that are not UTF-8 are replaced.
    JsonText& add(const char* name, std::string_view text);
    JsonText& add(const char* name, const char* text) { return add(name, std::string_view(text)); }
    JsonText& add(const char* name, double number);
    JsonText& add(const char* name, std::integral auto value) {
        if constexpr (std::same_as<decltype(value), bool>)
            return add_plain(name, value ? "true" : "false");
        else
            return add_plain(name, std::to_string(value));
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
    bool first_ = true;  // the next member is the first of its object or array
};

}  // namespace stagehand::telemetry
