// The base of all C++ owners: spans, and errors as exceptions. stagehand.hpp includes this file.
#ifndef STAGEHAND_ERROR_HPP
#define STAGEHAND_ERROR_HPP

#if !defined(__cplusplus) || __cplusplus < 201703L
#error "stagehand/error.hpp needs C++17 or later: compile with -std=c++17 or -std=c++20"
#endif

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

#if __cplusplus >= 202002L
#include <span>
#endif

#include "stagehand.h"

namespace stagehand {
inline namespace abi0 {

#if __cplusplus >= 202002L
template <class T>
using Span = std::span<T>;
#else
// The part of std::span that these headers use: a pointer and a count, made from a container, an array, or a pointer
// and a count.
template <class T>
class Span {
public:
    constexpr Span() = default;
    constexpr Span(T* data, std::size_t size) : data_(data), size_(size) {}
    template <std::size_t N>
    constexpr Span(T (&array)[N]) : data_(array), size_(N) {}
    template <class Container, class = decltype(static_cast<T*>(std::declval<Container&>().data()))>
    constexpr Span(Container&& container) : data_(container.data()), size_(container.size()) {}

    constexpr T* data() const { return data_; }
    constexpr std::size_t size() const { return size_; }
    constexpr bool empty() const { return size_ == 0; }
    constexpr T* begin() const { return data_; }
    constexpr T* end() const { return data_ + size_; }
    constexpr T& operator[](std::size_t index) const { return data_[index]; }

private:
    T* data_ = nullptr;
    std::size_t size_ = 0;
};
#endif

// Returns the text of this thread's last error, or an empty text if there was no error.
inline std::string last_error() {
    std::string text(sh_last_error(nullptr, 0), '\0');
    if (!text.empty()) sh_last_error(&text[0], text.size() + 1);
    return text;
}

// Destructors call this function, because they cannot report a failure. A later call returns a failure of asynchronous
// work again.
inline void ignore(sh_status) noexcept {}

class Error : public std::runtime_error {
public:
    Error(sh_status status, const std::string& text)
        : std::runtime_error(std::string(sh_status_string(status)) + ": " + text), status_(status) {}

    sh_status status() const noexcept { return status_; }

private:
    sh_status status_;
};

// Throws on a failure. Returns SH_OK and positive statuses as they are.
inline sh_status check(sh_status status) {
    if (status < 0) throw Error(status, last_error());
    return status;
}

}  // namespace abi0
}  // namespace stagehand

#endif
