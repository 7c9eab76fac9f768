#include "platform/processors.h"

#include <charconv>

namespace stagehand::platform {
namespace {

// Takes a number from the front of the text.
std::optional<unsigned> take_number(std::string_view* text) {
    unsigned number = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), number);
    if (error != std::errc() || number >= CPU_SETSIZE) return std::nullopt;
    text->remove_prefix(static_cast<size_t>(end - text->data()));
    return number;
}

bool take(std::string_view* text, char wanted) {
    if (text->empty() || text->front() != wanted) return false;
    text->remove_prefix(1);
    return true;
}

}  // namespace

std::optional<cpu_set_t> parse_processors(std::string_view text) {
    cpu_set_t set;
    CPU_ZERO(&set);
    do {
        const std::optional<unsigned> first = take_number(&text);
        const std::optional<unsigned> last = first && take(&text, '-') ? take_number(&text) : first;
        if (!first || !last || *last < *first) return std::nullopt;
        for (unsigned i = *first; i <= *last; i++) CPU_SET(i, &set);
    } while (take(&text, ','));
    return text.empty() ? std::optional(set) : std::nullopt;
}

bool run_on(const cpu_set_t& processors) noexcept { return sched_setaffinity(0, sizeof processors, &processors) == 0; }

}  // namespace stagehand::platform
