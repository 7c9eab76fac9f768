// The check of flags that a caller gives. What a later version means by other bits is not what this one does.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "base/status.h"

#define SH_KNOWN(flag) \
    ::stagehand::KnownFlag { flag, #flag }

namespace stagehand {

struct KnownFlag {
    uint32_t bits;
    const char* name;
};

Status unknown_flags(const char* field, uint32_t flags, uint32_t unknown, std::initializer_list<KnownFlag> known);

// Refuses flags with bits that are not known. The text names these bits and the flags that are known. What is known
// costs nothing, because an acquire is checked, too.
inline Status check_flags(const char* field, uint32_t flags, std::initializer_list<KnownFlag> known) {
    uint32_t unknown = flags;
    for (const KnownFlag& one : known) unknown &= ~one.bits;
    return unknown ? unknown_flags(field, flags, unknown, known) : Status();
}

}  // namespace stagehand
