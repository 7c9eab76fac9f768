// The version that the backends of this library tell: that of the library they belong to.
#pragma once

#include "stagehand/version.h"

#define SH_SUPPORT_TEXT(number) #number
#define SH_SUPPORT_VERSION(major, minor, patch) \
    SH_SUPPORT_TEXT(major) "." SH_SUPPORT_TEXT(minor) "." SH_SUPPORT_TEXT(patch)

namespace stagehand::support {

inline constexpr char kVersion[] = SH_SUPPORT_VERSION(SH_VERSION_MAJOR, SH_VERSION_MINOR, SH_VERSION_PATCH);

}  // namespace stagehand::support

#undef SH_SUPPORT_VERSION
#undef SH_SUPPORT_TEXT
