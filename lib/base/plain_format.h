// plain_format: printf() as in the locale "C", whatever locale the engine has set. Messages and the log have the same
// numbers everywhere.
#pragma once

#include <cstdarg>
#include <cstddef>
#include <cstdio>

#include <locale.h>

namespace stagehand {

inline int vplain_format(char* out, size_t bytes, const char* format, va_list arguments) noexcept {
    static const locale_t plain = newlocale(LC_ALL_MASK, "C", locale_t());
    const locale_t before = uselocale(plain);
    const int length = std::vsnprintf(out, bytes, format, arguments);
    uselocale(before);
    return length;
}

[[gnu::format(printf, 3, 4)]] inline int plain_format(char* out, size_t bytes, const char* format, ...) noexcept {
    va_list arguments;
    va_start(arguments, format);
    const int length = vplain_format(out, bytes, format, arguments);
    va_end(arguments);
    return length;
}

}  // namespace stagehand
