// Numbers in text, read in the same way in every locale: no blanks before them, no plus sign and no 0x.
#pragma once

#include <charconv>
#include <concepts>
#include <optional>
#include <string_view>

namespace stagehand {

// Takes a number from the front of a text. Nothing is taken if there is none, or if it does not fit the type.
template <std::integral Number>
std::optional<Number> take_number(std::string_view* text, int base = 10) {
    Number number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number, base);
    if (error != std::errc()) return std::nullopt;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    return number;
}
template <std::floating_point Number>
std::optional<Number> take_number(std::string_view* text) {
    Number number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc()) return std::nullopt;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    return number;
}

// Reads a text that is a decimal number and nothing else.
template <class Number>
std::optional<Number> read_number(std::string_view text) {
    const std::optional<Number> number = take_number<Number>(&text);
    return text.empty() ? number : std::nullopt;
}

}  // namespace stagehand
