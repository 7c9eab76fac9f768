#include "base/flags.h"

#include <string>

namespace stagehand {
namespace {

std::string hex(uint32_t bits) {
    std::string text;
    for (; bits || text.empty(); bits >>= 4) text.insert(text.begin(), "0123456789abcdef"[bits & 15]);
    return "0x" + text;
}

}  // namespace

Status unknown_flags(const char* field, uint32_t flags, uint32_t unknown, std::initializer_list<KnownFlag> known) {
    std::string names;
    for (const KnownFlag& one : known)
        names += (names.empty() ? "" : ", ") + std::string(one.name) + " (" + hex(one.bits) + ")";
    return Status(SH_ERROR_INVALID_ARGUMENT, std::string(field) + " is " + hex(flags) + ", which has unknown bits (" +
                                                 hex(unknown) + "); the known flags are " + names);
}

}  // namespace stagehand
