/* Version of the library and of its binary interface. The build parses this file, so keep one number on each line. */
#ifndef STAGEHAND_VERSION_H
#define STAGEHAND_VERSION_H

/** Version of these headers. sh_version() returns the version of the library. */
#define SH_VERSION_MAJOR 0
#define SH_VERSION_MINOR 2
#define SH_VERSION_PATCH 0

/** Number in the soname, `libstagehand.so.<n>`. After the first release, it changes only when an existing program would
    break. */
#define SH_ABI_VERSION 0

#endif
