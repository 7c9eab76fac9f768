#include "platform/processors.h"

#include "base/number.h"

namespace stagehand::platform {
namespace {

// Takes the number of a processor from the front of the text.
std::optional<unsigned> take_processor(std::string_view* text) {
    const std::optional<unsigned> number = take_number<unsigned>(text);
    return number && *number < CPU_SETSIZE ? number : std::nullopt;
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
        const std::optional<unsigned> first = take_processor(&text);
        const std::optional<unsigned> last = first && take(&text, '-') ? take_processor(&text) : first;
        if (!first || !last || *last < *first) return std::nullopt;
        for (unsigned i = *first; i <= *last; i++) CPU_SET(i, &set);
    } while (take(&text, ','));
    return text.empty() ? std::optional(set) : std::nullopt;
}

bool run_on(const cpu_set_t& processors) noexcept { return sched_setaffinity(0, sizeof processors, &processors) == 0; }

}  // namespace stagehand::platform
